-- One prediction per request. Counts good answers (200 and succeeded), answers that say "at capacity", and others.
--
-- wrk's own percentiles run over all answers. Where there is a single connection the good ones are timed here by
-- themselves, because a server that quickly refuses half of its requests would look fast: `wrk … -- single`.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s, ns; } moment; int clock_gettime(int, moment *);")
local MONOTONIC = 1
local moment = ffi.new("moment")

wrk.method = "POST"
wrk.body = '{"input":{"s":"hello"}}'
wrk.headers["Content-Type"] = "application/json"

local threads = {}
local prepared, sent

local function now() -- in seconds
  ffi.C.clock_gettime(MONOTONIC, moment)
  return tonumber(moment.s) + tonumber(moment.ns) / 1e9
end

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  good, busy, bad, times = 0, 0, 0, {}
  prepared = wrk.format()
  if args[1] == "single" then
    request = function()
      sent = now()
      return prepared
    end
  end
end

function request()
  return prepared
end

function response(status, _, body)
  if status == 200 and string.find(body, '"status": ?"succeeded"') then
    good = good + 1
    if sent then
      times[good] = now() - sent
    end
  elseif status == 409 then
    busy = busy + 1
  else
    bad = bad + 1
  end
end

function done(summary, latency)
  local total = { good = 0, busy = 0, bad = 0 }
  for _, thread in ipairs(threads) do
    for name in pairs(total) do
      total[name] = total[name] + thread:get(name)
    end
  end
  local p50, p99 = latency:percentile(50) / 1e6, latency:percentile(99) / 1e6
  local timed = threads[1]:get("times")
  if #timed > 0 then
    table.sort(timed)
    p50, p99 = timed[math.ceil(#timed * 0.50)], timed[math.ceil(#timed * 0.99)]
  end
  local errors = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format('{"good":%d,"busy":%d,"bad":%d,"seconds":%.6f,"p50":%.7f,"p99":%.7f}\n',
    total.good, total.busy, total.bad + errors, summary.duration / 1e6, p50, p99))
end
