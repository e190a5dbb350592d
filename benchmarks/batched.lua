-- A distinct number in each request, twice that number and one expected back:
-- `-- HEAD TAIL PATTERN`. HEAD and TAIL are the body around the number, PATTERN finds it in the answer.
--
-- Counts an answer as good if its status is 200 and it belongs to a request that is under way and has no answer yet.
-- Prints what it saw as one line of JSON.
local threads = {}
local next_number, under_way = 0, {}
local head, tail, pattern

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  good, wrong = 0, 0
  head, tail, pattern = args[1], args[2], args[3]
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function request()
  next_number = next_number + 1
  under_way[next_number] = true
  return wrk.format(nil, nil, nil, head .. next_number .. tail)
end

function response(status, _, body)
  local found = status == 200 and tonumber(string.match(body, pattern))
  local asked = found and (found - 1) / 2
  if asked and under_way[asked] then
    under_way[asked] = nil
    good = good + 1
  else
    wrong = wrong + 1
  end
end

function done(summary, latency)
  local errors, good, wrong = summary.errors, 0, 0
  for _, thread in ipairs(threads) do
    good, wrong = good + thread:get("good"), wrong + thread:get("wrong")
  end
  local bad = wrong + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '{"good":%d,"bad":%d,"seconds":%.6f,"p50":%.6f,"p99":%.6f}\n',
    good, bad, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
