"""What grpc.aio costs by itself: a server that gives back the bytes of any request, unread.

Called with the ports of HTTP, where it only says that it is there, and of gRPC.
"""

from __future__ import annotations

import asyncio
import sys

import grpc.aio
import uvloop

_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class _Everything(grpc.GenericRpcHandler):
    def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(_echo)


async def _echo(request: bytes, _context: object) -> bytes:
    return request


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    writer.close()


async def _serve(port: int, grpc_port: int) -> None:
    server = grpc.aio.server(options=_UNLIMITED)
    server.add_generic_rpc_handlers((_Everything(),))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    async with await asyncio.start_server(_greet, "127.0.0.1", port):
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
