package engine

import (
	"strconv"
	"strings"
)

// atLeast reports whether a version such as "0.33.0rc1+cpu" is at least the
// given one. A suffix does not count: a release candidate of 0.33.0 has what
// 0.33.0 has. It is false for a text that is no version.
func atLeast(version string, major, minor, patch int) bool {
	v, ok := parseVersion(version)
	if !ok {
		return false
	}
	for i, want := range [...]int{major, minor, patch} {
		if v[i] != want {
			return v[i] > want
		}
	}
	return true
}

// parseVersion reads up to three numbers; missing ones are 0.
func parseVersion(s string) (v [3]int, ok bool) {
	s = strings.TrimPrefix(s, "v")
	for i := range v {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		if n == 0 {
			return v, i > 0
		}
		num, err := strconv.Atoi(s[:n])
		if err != nil {
			return v, false
		}
		v[i] = num
		if s = s[n:]; !strings.HasPrefix(s, ".") {
			return v, true
		}
		s = s[1:]
	}
	return v, true
}

// Older reports whether a version is known and below the given one.
func Older(version string, major, minor, patch int) bool {
	_, known := parseVersion(version)
	return known && !atLeast(version, major, minor, patch)
}
