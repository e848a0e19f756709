#!/usr/bin/env bash
# Every operator in every type on this machine's GPU.
set -euo pipefail
# shellcheck source=tools/accept/gpu_machine.sh
source tools/accept/gpu_machine.sh
part conformance --on gpu
echo "figure: $(report 'part("conformance gpu")["text"]'), on $gpu"
((part_status == 0)) && [[ "$(report 'part("conformance gpu")["verdict"]')" == passed ]]
