"""Metrics of the model's own, by the names and the labels that it chooses."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        labels = {"model": args["model_name"], "version": args["model_version"]}
        families = [
            pb_utils.MetricFamily(name="requests_seen_ns", description="Requests, and no time", kind=0),
            pb_utils.MetricFamily(name="last_sum", description="Latest sum", kind=pb_utils.MetricFamily.GAUGE),
            pb_utils.MetricFamily(name="sums", description="All sums", kind=pb_utils.MetricFamily.HISTOGRAM),
        ]
        self.counter, self.gauge = families[0].Metric(labels=labels), families[1].Metric(labels={"own": "a"})
        self.histogram = families[2].Metric(labels={}, buckets=[1, 10])
        self.logger = pb_utils.Logger

    def execute(self, requests):
        responses = []
        for request in requests:
            total = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().sum()
            self.counter.increment(1)
            self.gauge.set(float(total))
            self.histogram.observe(float(total))
            self.logger.log_info(f"the sum is {total:.0f}, of {self.counter.value():.0f} requests")
            self.logger.log_verbose("not shown")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([total], np.float32))]))
        return responses
