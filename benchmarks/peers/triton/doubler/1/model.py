"""Triton's Python backend: twice the number and one, 5 ms for each batch."""

from __future__ import annotations

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        sizes = [len(each) for each in inputs]
        until = time.perf_counter() + 0.005
        time.sleep(0.0045)  # less than 5 ms: it may wake late
        while time.perf_counter() < until:
            pass
        stacked = np.concatenate(inputs) * 2 + 1
        answers, begin = [], 0
        for size in sizes:
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", stacked[begin : begin + size])]))
            begin += size
        return answers
