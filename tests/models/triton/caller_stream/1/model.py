"""Adds up the responses of a decoupled model."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        return [await self.respond(request) for request in requests]

    async def respond(self, request):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN")]
        asked = pb_utils.InferenceRequest(model_name="repeat", inputs=inputs, requested_output_names=["OUT"])
        numbers = []
        if pb_utils.get_input_tensor_by_name(request, "ASYNC") is None:
            for response in asked.exec(decoupled=True):
                numbers += self.numbers(response)
        else:
            async for response in await asked.async_exec(decoupled=True):
                numbers += self.numbers(response)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.array([sum(numbers)], np.int32))])

    def numbers(self, response):
        if response.has_error():
            raise pb_utils.TritonModelException(response.error().message())
        return [int(each.as_numpy()[0]) for each in response.output_tensors()]
