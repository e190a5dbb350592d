"""The same for LitServe; `python server.py PORT` starts its own server."""

import sys

import litserve


class API(litserve.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        return x + 1

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(API(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, generate_client_file=False)
