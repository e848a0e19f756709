// Where another process's clock stands, from round trips: asked and answered by our clock, and what
// theirs showed in between (as NTP does, Mills 1991). Half of a round trip bounds what the estimate
// is off.
#ifndef STARLING_TOOLS_TRACE_CLOCK_ESTIMATE_H_
#define STARLING_TOOLS_TRACE_CLOCK_ESTIMATE_H_

#include <cstdint>
#include <optional>

namespace starling::trace {

// Microseconds throughout. Pure; not thread-safe.
class ClockEstimate {
 public:
  // One that is answered before it was asked is not taken.
  void Add(int64_t asked, int64_t answered, int64_t theirs);

  // What is added from now on belongs to another end of the trace: between the best trip before and
  // the best one from now on their clock may run slower or faster than ours, steadily.
  void BeginSecondRound();

  bool known() const { return first_.has_value(); }

  // The greatest that it may be off, in either direction. Only where known.
  int64_t error() const;
  // Their clock less ours, when ours shows `ours`. Only where known.
  int64_t OffsetAt(int64_t ours) const;
  // When theirs shows `theirs`, ours shows this. Never runs backwards. Only where known.
  int64_t ToOurs(int64_t theirs) const;
  int64_t ToTheirs(int64_t ours) const { return ours + OffsetAt(ours); }

 private:
  struct Trip {
    int64_t ours = 0;  // in the middle
    int64_t theirs = 0;
    int64_t error = 0;
  };
  std::optional<Trip> first_, last_;  // the best of each round
  bool second_round_ = false;
};

}  // namespace starling::trace

#endif  // STARLING_TOOLS_TRACE_CLOCK_ESTIMATE_H_
