package faults

// childEnv names the part of this package that a child process plays: some
// faults need a process with limits of its own.
const childEnv = "LMWARDEN_FAULTS_CHILD"

var children = map[string]func() int{}
