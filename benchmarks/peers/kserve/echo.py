"""KServe's model server: gives its input. Called with the ports of HTTP and gRPC."""

from __future__ import annotations

import sys

from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Echo(Model):
    def __init__(self):
        super().__init__("echo")
        self.ready = True

    async def predict(self, payload, headers=None, response_headers=None):
        assert isinstance(payload, InferRequest)
        x = payload.inputs[0].as_numpy()
        y = InferOutput("y", list(x.shape), "FP32")
        y.set_data_from_numpy(x, binary_data=False)
        return InferResponse(response_id=payload.id or "", model_name=self.name, infer_outputs=[y])


if __name__ == "__main__":
    ModelServer(http_port=int(sys.argv[1]), grpc_port=int(sys.argv[2]), workers=1).start([Echo()])
