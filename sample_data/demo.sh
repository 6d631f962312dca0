#!/bin/sh
# What `make demo` runs: the tour of `calib demo`, into out/demo/.
set -e
cd "$(dirname "$0")/.."
rm -rf out/demo
calib demo --save out/demo
