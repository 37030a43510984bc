package stats

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const day = 24 * time.Hour

// Group says whose sums a chart shows apart.
type Group string

const (
	GroupNone    Group = "none"
	GroupReplica Group = "replica"
	GroupClient  Group = "client"
)

// Query is what a chart asks for. ParseQuery makes one.
type Query struct {
	Model string // empty for all
	// From and To are whole steps since the Unix epoch; To is not part of the
	// range. A range that ends now includes the step that runs.
	From, To time.Time
	Step     time.Duration // whole multiple of 10 s
	Group    Group
}

// QueryError says which part of a query is wrong, in words for the one who asked.
type QueryError struct {
	Field, Value string
	Message      string // what is allowed
}

func (e *QueryError) Error() string { return fmt.Sprintf("%s %q: %s", e.Field, e.Value, e.Message) }

// steps are those that a query without a step gets, the first with which there are
// at most autoPoints.
var steps = [...]time.Duration{
	10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, day, 7 * day,
}

const autoPoints = 360

// ParseQuery reads the parameters model, range (1h, 6h, 24h, 7d, 30d or any other
// length, ending now; default 1h) or from and to (RFC 3339), step (default: as fits)
// and group (none, replica, client; default none). Errors are of type *QueryError.
func ParseQuery(v url.Values, now time.Time) (Query, error) {
	q := Query{Model: v.Get("model"), Group: GroupNone}
	if g := v.Get("group"); g != "" {
		q.Group = Group(g)
		if !slices.Contains([]Group{GroupNone, GroupReplica, GroupClient}, q.Group) {
			return Query{}, &QueryError{"group", g, "must be none, replica or client"}
		}
	}
	if text := v.Get("step"); text != "" && text != "auto" {
		d, err := ParseLength(text)
		if err != nil || d < resolutions[0].step || d%resolutions[0].step != 0 {
			return Query{}, &QueryError{"step", text, "must be auto or a multiple of 10s, as in 10s, 1m or 1h"}
		}
		q.Step = d
	}
	running := v.Get("from") == "" && v.Get("to") == ""
	var length time.Duration
	switch {
	case running:
		text := v.Get("range")
		if text == "" {
			text = "1h"
		}
		d, err := ParseLength(text)
		if err != nil || d < 10*time.Second || d > 10*365*day {
			return Query{}, &QueryError{"range", text, "must be a length of time up to now, as in 1h, 6h, 24h, 7d or 30d"}
		}
		length, q.From, q.To = d, now.Add(-d), now
	case v.Get("range") != "":
		return Query{}, &QueryError{"range", v.Get("range"), "goes without from and to"}
	default:
		q.To = now
		var err error
		if q.From, err = parseTime(v, "from"); err == nil && v.Get("to") != "" {
			q.To, err = parseTime(v, "to")
		}
		if err != nil {
			return Query{}, err
		}
		if !q.From.Before(q.To) {
			return Query{}, &QueryError{"from", v.Get("from"), "must be before to (" + q.To.UTC().Format(time.RFC3339) + ")"}
		}
		length = q.To.Sub(q.From)
	}
	age := now.Sub(q.From)
	if q.Step == 0 {
		q.Step = autoStep(length, age)
	} else if kept := resolutionOf(q.Step).keep; kept > 0 && age > kept {
		return Query{}, &QueryError{"step", v.Get("step"), fmt.Sprintf("steps that short are kept for %d days only; give a longer step or auto", kept/day)}
	}
	if running {
		q.To = floor(now, q.Step).Add(q.Step)
		q.From = q.To.Add(-(length + q.Step - 1) / q.Step * q.Step)
	} else {
		q.From, q.To = floor(q.From, q.Step), floor(q.To.Add(q.Step-1), q.Step)
	}
	return q, q.check()
}

// autoStep is the shortest step that suits a range of this length and whose sums
// are still kept at its beginning.
func autoStep(length, age time.Duration) time.Duration {
	for _, s := range steps {
		r := resolutionOf(s)
		if length <= autoPoints*s && length < time.Duration(r.most)*r.step && (r.keep == 0 || age <= r.keep) {
			return s
		}
	}
	return steps[len(steps)-1]
}

// check refuses a query that was put together wrongly.
func (q *Query) check() error {
	switch {
	case q.Step < resolutions[0].step || q.Step%resolutions[0].step != 0:
		return &QueryError{"step", q.Step.String(), "must be a multiple of 10s"}
	case !q.From.Before(q.To):
		return &QueryError{"from", q.From.UTC().Format(time.RFC3339), "must be before to (" + q.To.UTC().Format(time.RFC3339) + ")"}
	case q.reads() > resolutionOf(q.Step).most:
		return &QueryError{"step", q.Step.String(), "too short for a range of " + q.To.Sub(q.From).String() + "; give a longer step or auto"}
	case q.Group == "":
		q.Group = GroupNone
	}
	q.From, q.To = floor(q.From, q.Step), floor(q.To.Add(q.Step-1), q.Step)
	return nil
}

// reads is how many sums of each member are read.
func (q *Query) reads() int { return int(q.To.Sub(q.From) / resolutionOf(q.Step).step) }

// points is the number of steps.
func (q *Query) points() int { return int(q.To.Sub(q.From) / q.Step) }

// floor is the beginning of the step that t is in, counted from the Unix epoch.
func floor(t time.Time, step time.Duration) time.Time {
	return time.UnixMilli(floorMilli(t.UnixMilli(), step)).UTC()
}

func floorMilli(ms int64, step time.Duration) int64 {
	s := step.Milliseconds()
	r := ms % s
	if r < 0 {
		r += s
	}
	return ms - r
}

func parseTime(v url.Values, name string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, v.Get(name))
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return time.Time{}, &QueryError{name, v.Get(name), "must be a time, as in 2026-10-04T08:00:00Z"}
	}
	return t, nil
}

// ParseLength reads a length of time: d for days is allowed beside Go's units.
func ParseLength(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * day, err
	}
	return time.ParseDuration(text)
}
