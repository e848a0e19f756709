#!/usr/bin/env bash
# From a fresh Debian 12 to a trained model: installs, builds, starts a cluster on this machine,
# trains on real data, kills a shard and a worker on the way, reports, and stops everything.
#
#   tools/quickstart.sh
#
# Trains on MNIST if $STARLING_DATA/mnist has it, otherwise on the UCI handwritten digits. Its
# cluster has its own folder, so a cluster that already runs is not touched. Exit status 0 only if
# the model was trained.
set -euo pipefail
if (($# > 0)); then
  echo "usage: tools/quickstart.sh" >&2
  exit 2
fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."

began=$SECONDS
state=$(mktemp -d "${TMPDIR:-/tmp}/starling-quickstart.XXXXXX")
log="$state/quickstart.log"
client=bazel-bin/tools/cli/starling
workers=2 shards=2
train_seconds=30
killer=""
phase=0 phases=6

say() { printf '       %s\n' "$*"; }

begin_phase() {
  phase=$((phase + 1))
  printf '[%d/%d %4ds] %s\n' "$phase" "$phases" $((SECONDS - began)) "$*"
}

# quietly COMMAND...: sends output to the log; on failure shows the end of it.
quietly() {
  local status=0
  echo "== $*" >>"$log"
  "$@" >>"$log" 2>&1 || status=$?
  if ((status != 0)); then
    echo "quickstart: failed with status $status: $*" >&2
    tail -n 20 "$log" >&2
    exit 1
  fi
}

# A Bazel server that was already running stays; ours is shut down.
bazel_server_runs() {
  local base pid
  base="$HOME/.cache/bazel/_bazel_$(id -un)/$(printf %s "$PWD" | md5sum | cut -d' ' -f1)"
  pid=$(cat "$base/server/server.pid.txt" 2>/dev/null) && kill -0 "$pid" 2>/dev/null
}
bazel_ran=false
if bazel_server_runs; then bazel_ran=true; fi

# shellcheck disable=SC2317
finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM
  if [[ -n "$killer" ]]; then kill "$killer" 2>/dev/null || true; fi
  if [[ -x "$client" ]]; then
    "$client" local down --state "$state/cluster" >>"$log" 2>&1 || true
  fi
  if ! $bazel_ran && bazel_server_runs; then bazel shutdown >>"$log" 2>&1 || true; fi
  if ((status == 0)); then
    rm -rf "$state"
  else
    echo "quickstart: stopped; no process was left. Log: $log" >&2
  fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cat <<EOF
Starling's quickstart: set up, build, start a cluster of $shards shards and $workers workers
on this machine, train, kill a shard and a worker on the way, report, stop.
  downloads  Debian packages that are missing (up to 300 MB on a fresh machine),
             and 2 MB of training data unless STARLING_DATA has MNIST
  disk       up to 2 GB on a fresh machine (packages, build)
  time       up to 10 minutes on 2 cores without the download; the second time, 1
  log        $log
EOF

begin_phase "install what is missing"
quietly tools/setup.sh

begin_phase "build"
quietly bazel build --noshow_progress //tools/cli:starling \
  //server/coordinator:starling-coordinator //server/shard:starling-ps //worker:starling-worker

begin_phase "training data"
mnist="${STARLING_DATA:-}/mnist"
if [[ -n "${STARLING_DATA:-}" && -f "$mnist/train-images-idx3-ubyte.gz" &&
  -f "$mnist/train-labels-idx1-ubyte.gz" &&
  -f "$mnist/t10k-images-idx3-ubyte.gz" && -f "$mnist/t10k-labels-idx1-ubyte.gz" ]]; then
  job=mnist-cnn file=examples/mnist_cnn.yaml
  export STARLING_DATA
  say "MNIST, from $mnist"
else
  job=digits-mlp file=examples/digits_mlp.yaml
  if ! STARLING_DIGITS=$(tools/fetch_digits.sh 2>>"$log"); then
    tail -n 3 "$log" >&2
    exit 1
  fi
  export STARLING_DIGITS
  say "UCI handwritten digits, from $STARLING_DIGITS"
fi

begin_phase "start the cluster"
quietly "$client" local up --shards "$shards" --workers "$workers" --detach --state "$state/cluster"
STARLING_COORDINATOR=$(<"$state/cluster/address")
export STARLING_COORDINATOR
"$client" get workers | sed 's/^/       /'

# number KEY <JSON: the first number of that name.
number() { sed -nE "s/^ +\"$1\": ([0-9.e+-]+),?$/\1/p" | head -n 1; }

begin_phase "train, and kill a shard and a worker on the way"
steps=(--set stop.epochs=60)
if [[ "$job" == mnist-cnn ]]; then
  quietly "$client" submit -f "$file" --watch --set metadata.name=speed-test --set stop.steps=60
  measured=$("$client" describe job speed-test -o json | number runningSeconds)
  fitting=$(awk -v t="$measured" -v all="$train_seconds" \
    'BEGIN { n = int(60 * all / t); print (n > 2345 ? 2345 : n) }')
  quietly "$client" delete speed-test
  steps=(--set "stop.steps=$fitting")
  say "60 steps took $measured s: training for $fitting steps," \
    "about $train_seconds s (5 epochs are 2,345)"
fi
quietly "$client" submit -f "$file" "${steps[@]}"

# kill_one NAME TEXT: kill -9; the cluster starts it again.
kill_one() {
  local pid
  pid=$(<"$state/cluster/run/$1.pid")
  kill -9 "$pid"
  printf '\n       == kill -9 of %s (process %s) at step %s: %s\n' "$1" "$pid" "$done_steps" "$2"
}

# In the background: kill -9 of a shard, once the other one has a copy of all that it holds, and of
# a worker, once the other shard has taken over. Status 1: the job ended before that.
kill_both() {
  local status done_steps all_steps whole partitions killed=none
  while true; do
    sleep 0.1
    status=$("$client" describe job "$job" -o json)
    if grep -q '"state": "\(SUCCEEDED\|FAILED\|CANCELLED\)"' <<<"$status"; then return 1; fi
    done_steps=$(number step <<<"$status") all_steps=$(number steps <<<"$status")
    if [[ $killed == none ]]; then
      whole=$(number partitionsWhole <<<"$status") partitions=$(number partitions <<<"$status")
      if ((partitions > 0 && whole == partitions && 5 * done_steps >= all_steps)); then
        kill_one shard-0 "the other shard has a copy"
        killed=shard
      fi
    elif (($(number failovers <<<"$status") > 0 && 2 * done_steps >= all_steps)); then
      kill_one worker-0 "the other worker goes on"
      return 0
    fi
  done
}
kill_both >&2 &
killer=$!
accuracy=$("$client" wait "$job" --timeout 10m)
if ! wait "$killer"; then
  echo "quickstart: the job ended before a shard and a worker could be killed" >&2
  exit 1
fi
killer=""

begin_phase "report"
"$client" describe job "$job" |
  sed -n '/^\(Name\|State\|Policy\|Parameters\|Staleness\|Coverage\|Copies\)/s/^/       /p'
for kind in shard worker; do
  row=""
  for ((i = 0; i < 100 && ${#row} == 0; i++)); do
    row=$("$client" get "${kind}s" |
      awk -v name="$kind-0" '$1 == name && $2 != "lost" { print "incarnation " $(NF - 3) ", " $2 }')
    sleep 0.1
  done
  say "$kind-0 was started again: ${row:-it has not registered yet}"
done
quietly "$client" local down --state "$state/cluster"
say "all processes are stopped; $((SECONDS - began)) s in all"
say "next: examples/, tools/starling --help, README.md"
echo "$accuracy"
