"""What geartrain costs on Ray Serve in HAProxy mode, beside a deployment of Serve that does nothing.

    python benchmarks/ray_serve.py

starts Ray on this machine with three applications of one replica each, puts them under load in turns, and prints their
rates and the ratios to the first. It needs wrk and `geartrain[ray]`, and takes about two minutes.

| application | what answers |
|---|---|
| bare | `async def __call__` that returns a few bytes: Serve's own machinery and nothing else |
| geartrain | `geartrain.ray.app`: its wire on the port of the replica |
| behind ASGI | the same models as an ASGI application inside the replica, as Serve offers it |
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ENVIRONMENT: Final = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",  # for the bare one and the one behind ASGI: geartrain's wire needs none
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}
SCRIPT: Final = Path(__file__).parent / "predict.lua"
MODEL: Final = Path(__file__).parent / "models" / "noop_async"
MANY: Final = 1000  # requests at once
PORT: Final = 18_000


def bare() -> Any:
    """Return the application that does nothing."""
    from ray import serve

    class Bare:
        async def __call__(self, _request: Any) -> bytes:
            """Answer what wrk counts as good."""
            return b'{"status":"succeeded"}'

    return serve.deployment(Bare, name="bare").options(max_ongoing_requests=MANY).bind()


def behind_asgi() -> Any:
    """Return the application that Serve calls by ASGI."""
    from ray import serve

    class Hosted:
        async def __serve_build_asgi_app__(self) -> Any:
            """Return what is called."""
            import geartrain

            return geartrain.asgi(MODEL, wait_ready=True, access_log="off", queue=MANY)

    return serve.deployment(serve.ingress()(Hosted), name="hosted").options(max_ongoing_requests=MANY).bind()


def geartrain_app() -> Any:
    """Return the application that is measured."""
    import geartrain.ray

    return geartrain.ray.app(MODEL, access_log="off", queue=MANY)


def drive(path: str, connections: int, seconds: int) -> float:
    """Put an application under load; return its good answers per second, or end the program if there were others."""
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(SCRIPT)]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{PORT}{path}", "--", "many"],
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds + 30,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    if found["bad"] or found["busy"]:
        sys.exit(f"{path}: {found['bad'] + found['busy']} answers were wrong")
    return float(found["good"] / found["seconds"])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each application")
    parser.add_argument("--seconds", type=int, default=3, help="how long a turn takes")
    parser.add_argument("--connections", type=int, default=16, help="of wrk")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed (Debian: apt install wrk)")
    os.environ.update(ENVIRONMENT)
    import ray
    from ray import serve

    ray.init("local", num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        serve.start(proxy_location="HeadOnly", http_options={"port": PORT})
        made = {"bare": bare(), "geartrain": geartrain_app(), "behind-asgi": behind_asgi()}
        for name, app in made.items():
            serve.run(app, name=name, route_prefix=f"/{name}")
        rates: dict[str, list[float]] = {name: [] for name in made}
        for number in range(-1, arguments.rounds):
            for name in made if number % 2 else reversed(made):
                rate = drive(f"/{name}/predictions", arguments.connections, arguments.seconds)
                if number >= 0:  # the first turn warms up
                    rates[name].append(rate)
        report(rates)
    finally:
        serve.shutdown()
        ray.shutdown()


def report(rates: dict[str, list[float]]) -> None:
    """Print the medians, and the ratios to the bare one round by round."""
    print("| application | requests/s | to bare: median | lowest and highest |")
    print("| --- | ---: | ---: | ---: |")
    for name, found in rates.items():
        ratios = [mine / other for mine, other in zip(found, rates["bare"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {name} | {statistics.median(found):,.0f} | {statistics.median(ratios):.2f} | {spread} |")


if __name__ == "__main__":
    main()
