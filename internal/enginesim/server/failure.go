package server

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// failure is one thing that goes wrong: when, how, and for how long. Its times are the engine's, which
// run as fast as Options.Speed says. Each kind reads some of the fields below at; see kinds.
type failure struct {
	kind *kind
	spec string // as it was asked for
	at   time.Duration

	lasts      time.Duration // 0: to the end
	rank       int
	down       time.Duration // from the end of the process to its return; 0: it does not return
	ranks      int           // after the return; 0: as before
	timeout    time.Duration
	answers    time.Duration
	shell      bool
	count      int // requests at most; 0: no limit
	share      float64
	path       string // prefix; empty: the routes that generate
	reused     bool
	after      int
	how        string
	delay      time.Duration
	retryAfter time.Duration
	mode       string
	factor     float64
}

// pair is one key of a failure with its value.
type pair struct{ key, value string }

// parseFailure reads KIND[@TIME][,KEY=VALUE...].
func parseFailure(spec string) (failure, error) {
	head, rest, keys := strings.Cut(spec, ",")
	name, at, timed := strings.Cut(head, "@")
	var pairs []pair
	if timed {
		pairs = append(pairs, pair{"at", at})
	}
	if keys {
		for _, p := range strings.Split(rest, ",") {
			key, value, _ := strings.Cut(p, "=")
			pairs = append(pairs, pair{key, value})
		}
	}
	return newFailure(spec, name, pairs)
}

// newFailure reports everything that is wrong with the keys.
func newFailure(spec, name string, pairs []pair) (failure, error) {
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		var names []string
		for _, k := range all {
			names = append(names, k.name)
		}
		return failure{}, fmt.Errorf("failure %q: the kind %q does not exist: choose one of %s", spec, name, strings.Join(names, ", "))
	}
	f := all[i].defaults
	f.kind, f.spec = &all[i], spec
	known := strings.Fields("at " + f.kind.keys)
	var errs []error
	for _, p := range pairs {
		err := fmt.Errorf("%s has no key %q: choose from %s", name, p.key, strings.Join(known, ", "))
		if slices.Contains(known, p.key) {
			err = f.set(p.key, p.value)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("failure %q: %w", spec, err))
		}
	}
	return f, errors.Join(errs...)
}

func (f *failure) set(key, value string) error {
	switch key {
	case "at":
		return setTime(&f.at, key, value)
	case "for":
		return setTime(&f.lasts, key, value)
	case "down":
		return setTime(&f.down, key, value)
	case "timeout":
		return setTime(&f.timeout, key, value)
	case "answers":
		return setTime(&f.answers, key, value)
	case "delay":
		return setTime(&f.delay, key, value)
	case "retry-after":
		return setTime(&f.retryAfter, key, value)
	case "rank":
		return setNumber(&f.rank, key, value, 0)
	case "ranks":
		return setNumber(&f.ranks, key, value, 1)
	case "count":
		return setNumber(&f.count, key, value, 1)
	case "after":
		return setNumber(&f.after, key, value, 0)
	case "shell":
		return setFlag(&f.shell, key, value)
	case "reused":
		return setFlag(&f.reused, key, value)
	case "share":
		share, err := strconv.ParseFloat(value, 64)
		if err != nil || !(share > 0 && share <= 1) { // NaN fails every comparison
			return fmt.Errorf("%s is %q: give a number above 0 and at most 1", key, value)
		}
		f.share = share
	case "factor":
		factor, err := strconv.ParseFloat(value, 64)
		if err != nil || !(factor >= 1 && factor <= maxFactor) {
			return fmt.Errorf("%s is %q: give a number from 1 to %d", key, value, maxFactor)
		}
		f.factor = factor
	case "path":
		if !strings.HasPrefix(value, "/") {
			return fmt.Errorf("%s is %q: give the beginning of a path, like /v1/", key, value)
		}
		f.path = value
	case "how":
		return setWord(&f.how, key, value, cutWays())
	case "mode":
		return setWord(&f.mode, key, value, pageModes())
	}
	return nil
}

// maxFactor is more than any card that still counts as running.
const maxFactor = 1000

func setTime(into *time.Duration, key, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return fmt.Errorf("%s is %q: give a time with its unit, like 500ms or 20s", key, value)
	}
	*into = d
	return nil
}

func setNumber(into *int, key, value string, least int) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < least {
		return fmt.Errorf("%s is %q: give a whole number from %d on", key, value, least)
	}
	*into = n
	return nil
}

// setFlag takes a key without a value for yes.
func setFlag(into *bool, key, value string) error {
	if value == "" {
		value = "true"
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return fmt.Errorf("%s is %q: give true or false", key, value)
	}
	*into = b
	return nil
}

func setWord(into *string, key, value string, words []string) error {
	if !slices.Contains(words, value) {
		return fmt.Errorf("%s is %q: choose one of %s", key, value, strings.Join(words, ", "))
	}
	*into = value
	return nil
}
