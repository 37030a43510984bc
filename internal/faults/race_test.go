//go:build race

package faults

// raced says that the race detector is in.
const raced = true
