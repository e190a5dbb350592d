"""LitServe's API: twice the number and one, 5 ms for each batch.

Called with the port, the wait in s, and its servers.
"""

from __future__ import annotations

import sys
import time

from litserve import LitAPI, LitServer


class Doubler(LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["x"]

    def batch(self, inputs):
        return list(inputs)

    def predict(self, x):
        until = time.perf_counter() + 0.005
        time.sleep(0.0045)  # less than 5 ms: it may wake late
        while time.perf_counter() < until:
            pass
        return [each * 2 + 1 for each in x]

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return {"y": output}


if __name__ == "__main__":
    api = Doubler(max_batch_size=32, batch_timeout=float(sys.argv[2]))
    server = LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True, timeout=False)
    server.run(
        host="127.0.0.1",
        port=int(sys.argv[1]),
        num_api_servers=int(sys.argv[3]),
        generate_client_file=False,
        log_level="error",
        access_log=False,
    )
