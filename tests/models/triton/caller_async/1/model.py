"""Asks another model of the server several times at once."""

import asyncio

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            first, second = (pb_utils.get_input_tensor_by_name(request, each) for each in ("INPUT0", "INPUT1"))
            asked = [
                pb_utils.InferenceRequest(
                    model_name="add_sub",
                    requested_output_names=["OUTPUT1"],
                    inputs=[pb_utils.Tensor("INPUT0", one.as_numpy()), pb_utils.Tensor("INPUT1", other.as_numpy())],
                ).async_exec()
                for one, other in ((first, second), (second, first), (first, first))
            ]
            parts = [
                pb_utils.get_output_tensor_by_name(each, "OUTPUT1").as_numpy() for each in await asyncio.gather(*asked)
            ]
            responses.append(
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", parts[0] * 100 + parts[1] + parts[2])])
            )
        return responses
