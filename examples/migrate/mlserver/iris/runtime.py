import json
from pathlib import Path

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Iris(MLModel):
    async def load(self) -> bool:
        centroids = json.loads(Path(self.settings.parameters.uri).read_text())
        self.labels = list(centroids)
        self.centroids = np.array(list(centroids.values()), dtype=np.float32)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        petal = self.decode(payload.inputs[0], default_codec=NumpyCodec)
        distances = np.linalg.norm(petal[:, None] - self.centroids, axis=2)
        labels = [self.labels[best] for best in distances.argmin(axis=1)]
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                StringCodec.encode_output("label", labels),
                NumpyCodec.encode_output("distance", distances.min(axis=1)[:, None]),
            ],
        )
