"""The words of a text, one by one, from a coroutine."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode()
            for word in text.split():
                await asyncio.sleep(0)
                sender.send(
                    pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([[word.upper()]], object))])
                )
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
