#!/bin/sh
# Runs the installed rustdoc as docs.rs runs it: with the unstable features of a nightly compiler. The documentation then
# names the feature of each item that needs one. Cargo runs this script if it is the value of RUSTDOC. The variable is set
# for rustdoc alone, because cargo would compile some dependencies again if the variable were set for cargo.
RUSTC_BOOTSTRAP=1 exec rustdoc "$@"
