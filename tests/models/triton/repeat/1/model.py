"""A response for each element of a list, from a thread that goes on after the end of execute()."""

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.running = 0
        self.lock = threading.Lock()

    def execute(self, requests):
        for request in requests:
            if pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().size == 0:
                raise ValueError("there is nothing to repeat")
            if json.loads(request.parameters()).get("running"):
                out = pb_utils.Tensor("OUT", np.array([self.running], np.int32))
                final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                request.get_response_sender().send(pb_utils.InferenceResponse([out]), flags=final)
                continue
            with self.lock:
                self.running += 1
            thread = threading.Thread(target=self.respond, args=(request, request.get_response_sender()), daemon=True)
            thread.start()

    def respond(self, request, sender):
        numbers = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        wait = pb_utils.get_input_tensor_by_name(request, "WAIT")
        for index, number in enumerate(numbers):
            if number < 0:
                error = pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG)
                sender.send(
                    pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
                )
                break
            out = pb_utils.Tensor("OUT", np.array([number], np.int32))
            idx = pb_utils.Tensor("IDX", np.array([index], np.uint32))
            sender.send(pb_utils.InferenceResponse([out, idx]))
        else:
            while wait is not None and wait.as_numpy()[0] and not sender.is_cancelled():
                time.sleep(0.01)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.lock:
            self.running -= 1
