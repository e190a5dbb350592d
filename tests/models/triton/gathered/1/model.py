"""Texts, several times, with an error for each request that asks for one."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            times = pb_utils.get_input_tensor_by_name(request, "TIMES")
            count = 1 if times is None else int(times.as_numpy()[0, 0])
            first = text[0, 0].decode()
            if first == "raise":
                raise pb_utils.TritonModelException("all of them")
            if first.startswith("code "):
                error = pb_utils.TritonError("no such thing", int(first.removeprefix("code ")))
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            texts = np.array([[each.decode() * count] for each in text[:, 0]], dtype=object)
            gathered = np.full([len(text), 1], len(requests), np.int64)
            tensors = [pb_utils.Tensor("TEXT", texts), pb_utils.Tensor("GATHERED", gathered)]
            responses.append(pb_utils.InferenceResponse(tensors, parameters={"first": first}))
        return responses
