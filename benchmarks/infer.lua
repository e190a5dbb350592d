-- Posts one body again and again: `-- FILE CONTENT_TYPE [HEADER_LENGTH]`. Prints what it saw as one line of JSON.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = args[2]
  if args[3] then
    wrk.headers["Inference-Header-Content-Length"] = args[3]
  end
end

function done(summary, latency)
  local errors = summary.errors
  local bad = errors.status + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '{"good":%d,"bad":%d,"seconds":%.6f,"p50":%.6f,"p99":%.6f}\n',
    summary.requests - errors.status, bad, summary.duration / 1e6,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
