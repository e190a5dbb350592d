"""Triton's Python backend: gives its input, as the model `echo` gives it."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(pb_utils.get_input_tensor_by_name(each, "x")) for each in requests]

    def _answer(self, x):
        answer = pb_utils.InferenceRequest(model_name="echo", requested_output_names=["y"], inputs=[x]).exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        return pb_utils.InferenceResponse([pb_utils.get_output_tensor_by_name(answer, "y")])
