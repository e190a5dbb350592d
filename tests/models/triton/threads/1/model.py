"""Asks another model from threads: one of each request, or those of a pool."""

import threading
from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.pool = ThreadPoolExecutor(1)

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            if pb_utils.get_input_tensor_by_name(request, "POOL") is None:
                threading.Thread(target=self.respond, args=(request, sender), daemon=True).start()
            else:
                self.pool.submit(self.respond, request, sender)

    def respond(self, request, sender):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        inputs = [given, pb_utils.Tensor("INPUT1", given.as_numpy())]
        for _ in range(2):
            asked = pb_utils.InferenceRequest(model_name="add_sub", inputs=inputs, requested_output_names=["OUTPUT0"])
            response = asked.exec()
            print(f"asked {asked.model_name()}")
            sender.send(response)
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
