package server

import (
	"fmt"
	"strconv"
	"strings"

	"lmwarden/internal/enginesim"
)

// version is the release of vLLM that a server plays, as far as behaviour depends on it.
type version struct {
	text         string
	major, minor int
}

func parseVersion(s string) (version, error) {
	v := version{text: s}
	major, rest, ok := strings.Cut(s, ".")
	minor, _, _ := strings.Cut(rest, ".")
	var err1, err2 error
	v.major, err1 = strconv.Atoi(major)
	v.minor, err2 = strconv.Atoi(minor)
	if !ok || err1 != nil || err2 != nil {
		return version{}, fmt.Errorf("version %q is not like 0.32.0", s)
	}
	return v, nil
}

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

// balancer is the algorithm of the release, which newest replaces from 0.27 on.
func (v version) balancer(newest enginesim.BalancerVersion) enginesim.BalancerVersion {
	switch {
	case v.atLeast(0, 27):
		return newest
	case v.atLeast(0, 26):
		return enginesim.BalancerB
	}
	return enginesim.BalancerA
}
