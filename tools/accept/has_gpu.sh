#!/usr/bin/env bash
# To be sourced by lines that judge a GPU: without an NVIDIA GPU the script ends: NOT RUN. Asks the
# system rather than our program: a program that does not see an existing GPU is a miss.
shopt -s nullglob
gpus=(/dev/nvidia? /proc/driver/nvidia/gpus/*)
shopt -u nullglob
if ((${#gpus[@]} == 0)); then
  echo "figure: no NVIDIA GPU: neither /dev/nvidia0 nor /proc/driver/nvidia/gpus is there"
  exit 75
fi
