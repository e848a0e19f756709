#!/usr/bin/env bash
# In place of a test that is only built with the CUDA toolkit.
echo "SKIPPED: no CUDA toolkit 13 with cuDNN 9, or CUDA_HOME=none is set"
