"""mosec's worker: twice the number and one, 5 ms for each batch.

Called with `--port` and the wait in ms (`MAX_WAIT`).
"""

from __future__ import annotations

import os
import time

from mosec import Server, Worker


class Doubler(Worker):
    def forward(self, data: list) -> list:
        until = time.perf_counter() + 0.005
        time.sleep(0.0045)  # less than 5 ms: it may wake late
        while time.perf_counter() < until:
            pass
        return [{"y": each["x"] * 2 + 1} for each in data]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Doubler, num=1, max_batch_size=32, max_wait_time=int(os.environ["MAX_WAIT"]))
    server.run()
