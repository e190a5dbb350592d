// Server-sent events out of a stream of bytes.

/** Yield `{ event, data }` for each event. A line may be long, and may come in many pieces: no piece is read twice. */
export async function* readEvents(stream) {
  let event = "message";
  let data = [];
  for await (const line of lines(stream)) {
    if (line === "") {
      if (data.length) yield { event, data: data.join("\n") };
      event = "message";
      data = [];
    } else if (line.startsWith("data:")) {
      data.push(line.slice(line[5] === " " ? 6 : 5));
    } else if (line.startsWith("event:")) {
      event = line.slice(6).trim();
    }
  }
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pieces = []; // of a line that has not ended
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = value.split("\n");
      for (const part of parts.slice(0, -1)) {
        pieces.push(part);
        const line = pieces.join("");
        pieces = [];
        yield line.endsWith("\r") ? line.slice(0, -1) : line;
      }
      if (parts.at(-1)) pieces.push(parts.at(-1));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
