"""LitServe's continuous loop with steps of 5 ms, each with a piece for all requests that are there.

Called with the port.
"""

from __future__ import annotations

import sys
import time

from litserve import LitAPI, LitServer
from litserve.loops.continuous_batching_loop import ContinuousBatchingLoop, Output
from litserve.utils import LitAPIStatus


class Steps(LitAPI):
    def setup(self, device):
        self.left = {}

    def decode_request(self, request):
        return request

    def add_request(self, uid, request):
        self.left[uid] = request["steps"]

    def has_capacity(self):
        return len(self.left) < 32

    def has_active_requests(self):
        return bool(self.left)

    def step(self, prev_outputs):
        time.sleep(0.005)
        outputs = []
        for uid in list(self.left):
            self.left[uid] -= 1
            outputs.append(Output(uid, "#", LitAPIStatus.OK))
            if not self.left[uid]:
                outputs.append(Output(uid, "", LitAPIStatus.FINISH_STREAMING))
                del self.left[uid]
        return outputs

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    api = Steps(loop=ContinuousBatchingLoop(), stream=True, max_batch_size=32)
    server = LitServer(api, accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error", access_log=False)
