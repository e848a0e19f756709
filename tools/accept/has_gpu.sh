#!/usr/bin/env bash
# For lines that judge a GPU, to be sourced: where the machine has none of NVIDIA's, the script ends: NOT RUN.
# Asked of the system, not of our program: a program that does not see a GPU that is there is a miss.
shopt -s nullglob
gpus=(/dev/nvidia? /proc/driver/nvidia/gpus/*)
shopt -u nullglob
if ((${#gpus[@]} == 0)); then
  echo "figure: no NVIDIA GPU: neither /dev/nvidia0 nor /proc/driver/nvidia/gpus is there"
  exit 75
fi
