// Estimates another process's clock from round trips: when a request was sent and answered by our
// clock, and the time that theirs showed in between (as NTP does, Mills 1991). Half a round trip
// bounds the error.
#ifndef STARLING_TOOLS_TRACE_CLOCK_ESTIMATE_H_
#define STARLING_TOOLS_TRACE_CLOCK_ESTIMATE_H_

#include <cstdint>
#include <optional>

namespace starling::trace {

// All times in microseconds. Pure; not thread-safe.
class ClockEstimate {
 public:
  // Ignores a trip that was answered before it was asked.
  void Add(int64_t asked, int64_t answered, int64_t theirs);

  // Trips added from now on belong to the other end of the trace. Between the best trips of the two
  // rounds their clock may drift against ours at a constant rate.
  void BeginSecondRound();

  bool known() const { return first_.has_value(); }

  // The greatest error in either direction. Only if known.
  int64_t error() const;
  // Their clock minus ours when ours shows `ours`. Only if known.
  int64_t OffsetAt(int64_t ours) const;
  // Our clock when theirs shows `theirs`. Monotonic. Only if known.
  int64_t ToOurs(int64_t theirs) const;

 private:
  struct Trip {
    int64_t ours = 0;  // the trip's middle
    int64_t theirs = 0;
    int64_t error = 0;
  };
  std::optional<Trip> first_, last_;  // the best of each round
  bool second_round_ = false;
};

}  // namespace starling::trace

#endif  // STARLING_TOOLS_TRACE_CLOCK_ESTIMATE_H_
