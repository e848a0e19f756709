#include "tests/sim/sim_loop.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

namespace starling::sim {

struct SimLoop::State {
  World* world;
  const Process* process;
  uint32_t life;
  std::deque<Task> tasks;
  std::map<std::pair<absl::Time, TimerId>, Task> timers;
  std::map<TimerId, absl::Time> timer_times;
  TimerId last_timer = 0;
  absl::Time busy_until = absl::InfinitePast();
  bool stopped = false;
  bool running = false;
  const bool blocks;
  int turns_missed = 0;  // while a task blocked

  bool alive() const { return process->alive && process->life == life; }
  void Run(Task task);
};

namespace {

absl::Duration Hop(Random& random) {
  return random.Between(absl::ZeroDuration(), absl::Microseconds(20));
}

// The time that a task takes: rarely as long as a preemption or a large update.
absl::Duration Cost(Random& random) {
  if (random.Below(256) == 0) {
    return random.Between(absl::ZeroDuration(), absl::Milliseconds(10));
  }
  return random.Between(absl::ZeroDuration(), absl::Microseconds(40));
}

}  // namespace

void SimLoop::State::Run(Task task) {
  running = true;
  const bool before = world->LetSleep(blocks);
  task();
  world->LetSleep(before);
  running = false;
  busy_until = std::max(busy_until, world->now()) + Cost(world->random());
}

SimLoop::SimLoop(World* world, const Process* process, bool blocks)
    : state_(std::make_shared<State>(
          State{.world = world, .process = process, .life = process->life, .blocks = blocks})) {}

SimLoop::~SimLoop() { Stop(); }

absl::Time SimLoop::Now() const { return state_->world->now(); }

namespace {

template <typename State>
void TakeTurn(const std::shared_ptr<State>& state, absl::Duration after);

template <typename State>
void RunInTurn(const std::shared_ptr<State>& state, Task task) {
  state->Run(std::move(task));
  for (; state->turns_missed > 0; --state->turns_missed) TakeTurn(state, absl::ZeroDuration());
}

// Each posted task and each timer takes one turn, which runs the first task that is due then.
template <typename State>
void TakeTurn(const std::shared_ptr<State>& state, absl::Duration after) {
  state->world->After(after, const_cast<Process*>(state->process), [state] {
    if (state->stopped) return;
    if (state->running) {
      ++state->turns_missed;
      return;
    }
    const absl::Time now = state->world->now();
    if (state->busy_until > now) return TakeTurn(state, state->busy_until - now);
    const auto timer = state->timers.begin();
    if (timer != state->timers.end() && timer->first.first <= now) {
      Task task = std::move(timer->second);
      state->timer_times.erase(timer->first.second);
      state->timers.erase(timer);
      return RunInTurn(state, std::move(task));
    }
    if (state->tasks.empty()) return;
    Task task = std::move(state->tasks.front());
    state->tasks.pop_front();
    RunInTurn(state, std::move(task));
  });
}

}  // namespace

bool SimLoop::Post(Task task) {
  if (state_->stopped || !state_->alive()) return false;
  state_->tasks.push_back(std::move(task));
  TakeTurn(state_, Hop(state_->world->random()));
  return true;
}

EventLoop::TimerId SimLoop::PostAt(absl::Time when, Task task) {
  if (state_->stopped) return 0;
  const TimerId id = ++state_->last_timer;
  state_->timers.emplace(std::pair(when, id), std::move(task));
  state_->timer_times.emplace(id, when);
  TakeTurn(state_, std::max(absl::ZeroDuration(), when - Now()));
  return id;
}

bool SimLoop::Cancel(TimerId timer) {
  const auto time = state_->timer_times.find(timer);
  if (time == state_->timer_times.end()) return false;
  const Task dropped = std::move(state_->timers.extract({time->second, timer}).mapped());
  state_->timer_times.erase(timer);
  return true;
}

void SimLoop::Stop() {
  State& state = *state_;
  if (std::exchange(state.stopped, true)) return;
  while (!state.timers.empty()) {
    const auto timer = state.timers.extract(state.timers.begin());
  }
  state.timer_times.clear();
  while (!state.tasks.empty()) {
    Task task = std::move(state.tasks.front());
    state.tasks.pop_front();
    if (state.alive()) state.Run(std::move(task));
  }
}

bool SimLoop::InLoop() const { return state_->running; }

MakeEventLoop MakeSimLoops(World* world, const Process* process) {
  return [world, process](const std::string& name) {
    // Of CheckpointWriter and CheckpointKeeper.
    const bool blocks =
        name == "checkpoint" || name == "checkpoints" || name == "verify" || name == "removals";
    return std::make_unique<SimLoop>(world, process, blocks);
  };
}

}  // namespace starling::sim
