package stats

import (
	"errors"
	"maps"
	"slices"
	"time"
)

// resolution is one length of steps for which sums are kept, in tables of their
// own.
type resolution struct {
	name string // of the tables, behind "sums_" and "samples_"
	step time.Duration
	keep time.Duration // 0: Options.KeepTotals
	// most is how many of its steps a query may read, so that it is answered at
	// once: the sketches of long steps are larger.
	most int
}

var resolutions = [...]resolution{
	{"10s", 10 * time.Second, 2 * day, 6 * 360},
	{"1m", time.Minute, 8 * day, 24 * 60},
	{"10m", 10 * time.Minute, 62 * day, 7 * 144},
	{"1h", time.Hour, 0, 31 * 24},
	{"1d", day, 0, 1000},
}

// resolutionOf is the coarsest one that a step is made of.
func resolutionOf(step time.Duration) resolution {
	r := resolutions[0]
	for _, c := range resolutions[1:] {
		if step%c.step == 0 {
			r = c
		}
	}
	return r
}

// dimension says of whom a sum is.
type dimension int

const (
	ofAll dimension = iota
	ofReplica
	ofClient
)

func (g Group) dimension() dimension {
	switch g {
	case GroupReplica:
		return ofReplica
	case GroupClient:
		return ofClient
	}
	return ofAll
}

// cell is the place of a sum. Each request is in one cell of each dimension and
// resolution, so that a chart reads no more rows than it has bars.
type cell struct {
	resolution int // in resolutions
	dimension  dimension
	step       int64 // its beginning
	model      string
	replica    int    // of ofReplica
	client     string // of ofClient
}

// sum is what a cell holds.
type sum struct {
	Counts
	Tokens
	latency
}

func (s *sum) join(o *sum) {
	s.Counts = s.Counts.plus(o.Counts)
	s.Tokens = s.Tokens.plus(o.Tokens)
	s.latency.join(&o.latency)
}

// latency is how long requests took: to the first byte, in all, and in the gateway.
type latency struct{ ttfb, duration, waited sketch }

func (l *latency) add(r *Record) {
	if r.TTFB > 0 {
		l.ttfb.add(r.TTFB)
	}
	l.duration.add(r.Duration)
	if r.Waited > 0 {
		l.waited.add(r.Waited)
	}
}

// merge adds encoded sketches.
func (l *latency) merge(ttfb, duration, waited []byte) error {
	return errors.Join(l.ttfb.merge(ttfb), l.duration.merge(duration), l.waited.merge(waited))
}

func (l *latency) join(o *latency) {
	l.ttfb.join(&o.ttfb)
	l.duration.join(&o.duration)
	l.waited.join(&o.waited)
}

func (l *latency) reset() {
	l.ttfb.reset()
	l.duration.reset()
	l.waited.reset()
}

// Counts are numbers of requests.
type Counts struct {
	Requests int64
	// By outcome.
	OK, ClientError, EngineError, GatewayError, Cancelled int64
	// By reason; the others are the rest.
	Placed, Stayed, Spilled, Moved int64
}

func (c *Counts) add(r *Record) {
	c.Requests++
	switch r.Outcome {
	case "ok":
		c.OK++
	case "client_error":
		c.ClientError++
	case "engine_error":
		c.EngineError++
	case "gateway_error":
		c.GatewayError++
	case "cancelled":
		c.Cancelled++
	}
	switch r.Reason {
	case "placed":
		c.Placed++
	case "stayed":
		c.Stayed++
	case "spilled":
		c.Spilled++
	case "moved":
		c.Moved++
	}
}

func (c Counts) plus(o Counts) Counts {
	return Counts{
		Requests: c.Requests + o.Requests,
		OK:       c.OK + o.OK, ClientError: c.ClientError + o.ClientError, EngineError: c.EngineError + o.EngineError,
		GatewayError: c.GatewayError + o.GatewayError, Cancelled: c.Cancelled + o.Cancelled,
		Placed: c.Placed + o.Placed, Stayed: c.Stayed + o.Stayed, Spilled: c.Spilled + o.Spilled, Moved: c.Moved + o.Moved,
	}
}

// rollUp sums records: those of the shortest steps, and from these the others.
func rollUp(records []Record) map[cell]*sum {
	cells := map[cell]*sum{}
	at := func(c cell) *sum {
		s := cells[c]
		if s == nil {
			s = &sum{}
			cells[c] = s
		}
		return s
	}
	for i := range records {
		r := &records[i]
		tokens := r.tokens()
		c := cell{step: floorMilli(r.Time.UnixMilli(), resolutions[0].step), model: r.Model}
		for _, c := range [...]cell{c, c.of(ofReplica, r), c.of(ofClient, r)} {
			s := at(c)
			s.Counts.add(r)
			s.Tokens = s.Tokens.plus(tokens)
			s.latency.add(r)
		}
	}
	for _, c := range slices.Collect(maps.Keys(cells)) {
		s := cells[c]
		for c.resolution = 1; c.resolution < len(resolutions); c.resolution++ {
			c.step = floorMilli(c.step, resolutions[c.resolution].step)
			at(c).join(s)
		}
	}
	return cells
}

func (c cell) of(d dimension, r *Record) cell {
	c.dimension = d
	switch d {
	case ofReplica:
		c.replica = r.Replica
	case ofClient:
		c.client = r.Client
	}
	return c
}

// shiftStep is the step by which moves and spills are counted.
const shiftStep = 10 * time.Minute

// shift is requests that left their home.
type shift struct {
	step          int64
	model         string
	reason, why   string
	from, replica int
}

// blame is turns by cause, by the hour.
type blame struct {
	step    int64
	model   string
	replica int
	cause   string
}

type blamed struct{ turns, reread int64 }

// asides counts what only some records have.
func asides(records []Record) (map[shift]int64, map[blame]blamed) {
	shifts, causes := map[shift]int64{}, map[blame]blamed{}
	for i := range records {
		r := &records[i]
		ms := r.Time.UnixMilli()
		if r.Reason == "moved" || r.Reason == "spilled" {
			shifts[shift{floorMilli(ms, shiftStep), r.Model, r.Reason, r.Why, r.From, r.Replica}]++
		}
		if r.Cause != "" {
			k := blame{floorMilli(ms, time.Hour), r.Model, r.Replica, r.Cause}
			b := causes[k]
			causes[k] = blamed{b.turns + 1, b.reread + r.Reread}
		}
	}
	return shifts, causes
}

// sampled is a sum over samples; what was not measured is left out of it.
type sampled struct {
	samples, inFlight, conversations int64
	measured, running, waiting       int64
	kvMeasured                       int64
	kv                               float64
}

func rollUpSamples(samples []Sample) map[cell]*sampled {
	cells := map[cell]*sampled{}
	for _, x := range samples {
		for res := range resolutions {
			c := cell{resolution: res, step: floorMilli(x.Time.UnixMilli(), resolutions[res].step), model: x.Model, replica: x.Replica}
			s := cells[c]
			if s == nil {
				s = &sampled{}
				cells[c] = s
			}
			s.samples++
			s.inFlight += int64(x.InFlight)
			s.conversations += int64(x.Conversations)
			if x.Running >= 0 && x.Waiting >= 0 {
				s.measured++
				s.running += int64(x.Running)
				s.waiting += int64(x.Waiting)
			}
			if x.KVUsed >= 0 && x.KVUsed <= 1 {
				s.kvMeasured++
				s.kv += x.KVUsed
			}
		}
	}
	return cells
}
