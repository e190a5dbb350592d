"""The same for MLServer."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Model(MLModel):
    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        found = NumpyCodec.decode_input(payload.inputs[0]) + 1
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("output", found)])
