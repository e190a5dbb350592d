"""LitServe with OpenAI's API: a chat of as many tokens as its `max_tokens` says, as fast as they can be yielded.

Called with the port.
"""

from __future__ import annotations

import sys

from litserve import LitAPI, LitServer, OpenAISpec


class Chat(LitAPI):
    def setup(self, device):
        pass

    def predict(self, prompt, context):
        for _ in range(int(context["max_tokens"])):
            yield " token"


if __name__ == "__main__":
    server = LitServer(Chat(spec=OpenAISpec()), accelerator="cpu", workers_per_device=1, timeout=False)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error", access_log=False)
