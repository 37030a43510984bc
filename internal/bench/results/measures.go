package results

// Measures are the figures of a step. nil is not measured, which is not zero.
//
// Turns count when they finished within the step; what was cut off at its end is
// in Cut alone, what failed in Failed alone. Times are seconds at the client. A
// turn that was cut after its answer began gives a TTFB, after its first token a
// TTFT, and nothing else.
type Measures struct {
	// The columns of the published table, in its order.

	SessionsPerHour    *float64 `json:"sessions_per_hour"`     // sessions that came to their end, per hour of load
	OutputTokensPerMin *float64 `json:"output_tokens_per_min"` // answer tokens of finished turns, per minute of load
	TTFBP50            *float64 `json:"ttfb_p50_s"`            // TTFB, from sending a turn to the first event of its answer, which an engine sends with the first token: median
	TTFBP95            *float64 `json:"ttfb_p95_s"`            // TTFB: 95th percentile
	// ReplicasBusy is the number of replicas with requests running, averaged over
	// the time of load.
	ReplicasBusy *float64 `json:"replicas_busy"`
	// PrefixHitPercent is prompt tokens served from the cache over prompt tokens
	// asked for, by the engines' own counters over the step, all replicas pooled.
	PrefixHitPercent *float64 `json:"prefix_hit_percent"`
	// StayedPercent is turns that went to their conversation's home over those that
	// did and those that spilled or moved; where a policy gives no homes, the replica
	// of the turn before counts as home.
	StayedPercent *float64 `json:"stayed_percent"`

	// Further columns.

	TTFBP99      *float64 `json:"ttfb_p99_s"`     // TTFB: 99th percentile
	TTFBMax      *float64 `json:"ttfb_max_s"`     // TTFB: the longest
	TTFBMean     *float64 `json:"ttfb_mean_s"`    // TTFB: mean
	TTFTP50      *float64 `json:"ttft_p50_s"`     // TTFT, from sending a turn to the first generated text, thinking or tool call: median
	TTFTP95      *float64 `json:"ttft_p95_s"`     // TTFT: 95th percentile
	ITLMean      *float64 `json:"itl_mean_ms"`    // mean over turns of their mean time between tokens
	E2EP50       *float64 `json:"e2e_p50_s"`      // E2E, from sending a turn to its end: median
	E2EP95       *float64 `json:"e2e_p95_s"`      // E2E: 95th percentile
	SessionMean  *float64 `json:"session_mean_s"` // whole sessions that came to their end: mean
	Turns        *float64 `json:"turns"`          // requests that finished
	Cut          *float64 `json:"cut"`            // requests that the end of the step cut off
	Failed       *float64 `json:"failed"`         // requests that were refused, broken, or ended by an error
	Jain         *float64 `json:"jain"`           // fairness index of the clients' finished turns, 1 is even
	RereadTokens *float64 `json:"reread_tokens"`  // prompt tokens computed though an earlier turn of the conversation had computed them
	Spills       *float64 `json:"spills"`         // turns that went elsewhere because their home was full
	Moves        *float64 `json:"moves"`          // turns that gave their conversation another home
	// FirstTurnSpread is the first turns on the replica that got most of them over
	// the mean of all replicas: 1 is even.
	FirstTurnSpread *float64 `json:"first_turn_spread"`
	Preemptions     *float64 `json:"preemptions"` // requests that an engine put back for want of KV space
}

// Direction says which of two figures is the better one.
type Direction int

// Directions of a column.
const (
	Neither Direction = iota
	Higher
	Lower
)

// Column is one figure of Measures: its names, how it is printed, and which way
// is better.
type Column struct {
	Name   string // in results.json
	Title  string // in tables
	Digits int    // after the decimal point, in tables
	Better Direction
	at     func(*Measures) **float64
}

// Of is the figure of m.
func (c Column) Of(m *Measures) *float64 { return *c.at(m) }

// Columns are the columns of the published table in its order, and further ones
// after them.
func Columns() []Column {
	return []Column{
		{"sessions_per_hour", "sessions/h", 0, Higher, func(m *Measures) **float64 { return &m.SessionsPerHour }},
		{"output_tokens_per_min", "output tok/min", 0, Higher, func(m *Measures) **float64 { return &m.OutputTokensPerMin }},
		{"ttfb_p50_s", "TTFB p50 s", 2, Lower, func(m *Measures) **float64 { return &m.TTFBP50 }},
		{"ttfb_p95_s", "TTFB p95 s", 2, Lower, func(m *Measures) **float64 { return &m.TTFBP95 }},
		{"replicas_busy", "replicas busy", 2, Higher, func(m *Measures) **float64 { return &m.ReplicasBusy }},
		{"prefix_hit_percent", "prefix hits %", 1, Higher, func(m *Measures) **float64 { return &m.PrefixHitPercent }},
		{"stayed_percent", "stayed %", 1, Higher, func(m *Measures) **float64 { return &m.StayedPercent }},

		{"ttfb_p99_s", "TTFB p99 s", 2, Lower, func(m *Measures) **float64 { return &m.TTFBP99 }},
		{"ttfb_max_s", "TTFB max s", 2, Lower, func(m *Measures) **float64 { return &m.TTFBMax }},
		{"ttfb_mean_s", "TTFB mean s", 2, Lower, func(m *Measures) **float64 { return &m.TTFBMean }},
		{"ttft_p50_s", "TTFT p50 s", 2, Lower, func(m *Measures) **float64 { return &m.TTFTP50 }},
		{"ttft_p95_s", "TTFT p95 s", 2, Lower, func(m *Measures) **float64 { return &m.TTFTP95 }},
		{"itl_mean_ms", "ITL mean ms", 1, Lower, func(m *Measures) **float64 { return &m.ITLMean }},
		{"e2e_p50_s", "E2E p50 s", 2, Lower, func(m *Measures) **float64 { return &m.E2EP50 }},
		{"e2e_p95_s", "E2E p95 s", 2, Lower, func(m *Measures) **float64 { return &m.E2EP95 }},
		{"session_mean_s", "session s", 1, Lower, func(m *Measures) **float64 { return &m.SessionMean }},
		{"turns", "turns", 0, Higher, func(m *Measures) **float64 { return &m.Turns }},
		{"cut", "cut", 0, Neither, func(m *Measures) **float64 { return &m.Cut }},
		{"failed", "failed", 0, Lower, func(m *Measures) **float64 { return &m.Failed }},
		{"jain", "Jain", 3, Higher, func(m *Measures) **float64 { return &m.Jain }},
		{"reread_tokens", "re-read tokens", 0, Lower, func(m *Measures) **float64 { return &m.RereadTokens }},
		{"spills", "spills", 0, Neither, func(m *Measures) **float64 { return &m.Spills }},
		{"moves", "moves", 0, Neither, func(m *Measures) **float64 { return &m.Moves }},
		{"first_turn_spread", "first-turn spread", 2, Lower, func(m *Measures) **float64 { return &m.FirstTurnSpread }},
		{"preemptions", "preemptions", 0, Lower, func(m *Measures) **float64 { return &m.Preemptions }},
	}
}

// Published is how many of Columns the published table has.
const Published = 7
