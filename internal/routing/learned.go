package routing

import (
	"math"
	"slices"
	"time"
)

// learned is what the core has measured of the engines and of the clients.
type learned struct {
	prefix       prefixWindow
	need         average // tokens that a request adds to a replica
	output       average // tokens of an answer
	outputSpread average // mean distance from that
	estimated    average // tokens estimated of a prompt for each that the engine counts
	first, later prompts
	rate         average // tokens that a replica reads in a second
	place        average // seconds from dispatch to end
	found        average // of what caches had lost, the share that was found again
	again        average // seconds that a turn spent on reading its history again
	waited       average // the share of the requests that waited
	turns        flow
	gaps         gapWindow
}

// Learned is what a core has measured: to be shown, and to be given to the next
// one after a restart.
type Learned struct {
	// Prefixes are the cached tokens of the latest first turns, Gaps the latest
	// seconds between an answer and the next turn (more than 10 when longer).
	Prefixes []int64
	Gaps     []float64

	Need         Measured // tokens that a request adds to a replica
	Output       Measured // tokens of an answer
	OutputSpread Measured // mean distance from that
	Estimated    Measured // tokens estimated of a prompt for each that the engine counts
	ReadingRate  Measured // tokens a second of one replica
	Place        Measured // seconds from dispatch to the end of an answer
	// Found is the share of what the caches had lost that was found again in the
	// host-memory tier.
	Found Measured
	// What follows is only shown: the shared prefix in tokens, the seconds for which
	// a place is kept, turns a second, and the share of the replicas' time that goes
	// into reading again what was pushed out of their caches.
	Shared, Hold, Throughput, Rereading Measured
}

// Measured is a value and the number of samples that it comes from; without any
// it is not known.
type Measured struct {
	Value   float64
	Samples int
}

// Learned copies what was learned.
func (c *Core) Learned() Learned {
	l := &c.learned
	m := func(a average) Measured { return Measured{a.value, a.samples} }
	out := Learned{
		Prefixes: slices.Clone(l.prefix.tokens[:min(l.prefix.seen, len(l.prefix.tokens))]),
		Gaps:     slices.Clone(l.gaps.seconds[:min(l.gaps.seen, len(l.gaps.seconds))]),
		Need:     m(l.need), Output: m(l.output), OutputSpread: m(l.outputSpread), Estimated: m(l.estimated),
		ReadingRate: m(l.rate), Place: m(l.place), Found: m(l.found),
		Throughput: Measured{l.turns.perSecond(c.clock.now), l.turns.samples},
		Rereading:  Measured{c.rereading(), l.again.samples},
	}
	out.Shared = Measured{float64(c.shared()), len(out.Prefixes)}
	out.Hold = Measured{c.hold.Seconds(), len(out.Gaps)}
	return out
}

// RestoreLearned takes what an earlier core had learned. It is for a core that
// has learned nothing yet; values that make no sense are left out.
func (c *Core) RestoreLearned(from Learned) {
	l := &c.learned
	for _, tokens := range from.Prefixes {
		l.prefix.add(max(tokens, 0))
	}
	for _, gap := range from.Gaps {
		if gap >= 0 {
			l.gaps.add(time.Duration(min(gap, 2*maxHold.Seconds()) * float64(time.Second)))
		}
	}
	for _, v := range []struct {
		to   *average
		from Measured
	}{
		{&l.need, from.Need}, {&l.output, from.Output}, {&l.outputSpread, from.OutputSpread},
		{&l.estimated, from.Estimated}, {&l.rate, from.ReadingRate}, {&l.place, from.Place}, {&l.found, from.Found},
	} {
		if v.from.Samples > 0 && v.from.Value >= 0 && !math.IsInf(v.from.Value, 0) {
			*v.to = average{v.from.Value, v.from.Samples}
		}
	}
	c.relearn()
}

// learnTimes takes what a complete answer says about the engine.
func (c *Core) learnTimes(q *request, o Outcome) {
	if q.Light {
		return
	}
	l := &c.learned
	l.turns.add(c.clock.now)
	l.place.add((c.clock.now - q.sent).Seconds(), 1.0/32)
	if !o.Known {
		return
	}
	l.outputSpread.add(math.Abs(float64(o.Completion)-l.output.or(float64(o.Completion))), 1.0/32)
	l.output.add(float64(o.Completion), 1.0/32)
	if q.Key != (Key{}) && o.Prompt > 0 {
		l.prompts(q).learn(q.guess, q.context, o.Prompt)
	}
	if q.Tokens > 0 && o.Prompt > 0 {
		ratio := min(max(float64(q.Tokens)/float64(o.Prompt), 1.0/16), 16)
		l.estimated.add(ratio, 1.0/32)
		if v := q.conv; v != nil {
			before := float64(v.estimated)
			if before == 0 {
				before = l.estimated.value
			}
			v.estimated = float32((before + ratio) / 2)
		}
	}
	read, took := o.Prompt-o.Cached, (q.begun - q.sent).Seconds()
	if !o.CachedKnown || took <= 0 {
		return
	}
	if !q.Whole && read > 0 {
		l.again.add(took*float64(reread(q, o))/float64(read), 1.0/64)
	}
	const enough = 512 // tokens, below which a step's own time is what is measured
	if read >= enough {
		switch rate := float64(read) / took; {
		case rate > l.rate.or(0):
			l.rate.add(rate, 0.5) // what was slow may have waited for others
		case !q.Whole: // else it includes the time to write the answer
			l.rate.add(rate, 1.0/16)
		}
	}
}

// reread is how much of its conversation's history a turn read again because its
// replica did not have it. What a client changed in its history does not count.
func reread(q *request, o Outcome) int64 { return min(q.lost, max(q.context-o.Cached, 0)) }

// relearn works out what follows from what was learned. It is not done with
// every request because it takes some microseconds.
func (c *Core) relearn() {
	c.fitting = c.fewestPlaces()
	c.judgeTier()
	c.judgeReading()
	c.gaps = c.learned.gaps.sorted()
	c.hold = c.gaps.hold(c.seconds(int64(c.learned.need.or(0))) * float64(c.fitting))
}

// throughput is the turns that end in a second, and half of what the replicas
// could do at least, so that an idle minute before does not count.
func (c *Core) throughput() float64 {
	places := 0
	for i := range c.replicas {
		places += c.places(i)
	}
	least := 0.0
	if place := c.learned.place.or(0); place > 0 {
		least = 0.5 * float64(places) / place
	}
	return max(c.learned.turns.perSecond(c.clock.now), least)
}

// rereading is the share of the replicas' time that goes into reading again what
// conversations had in a cache before: at most 1, which is also what it is where
// several prompts are always read at once.
func (c *Core) rereading() float64 {
	return min(c.learned.turns.perSecond(c.clock.now)*c.learned.again.or(0)/float64(len(c.replicas)), 1)
}

// average is a mean that forgets.
type average struct {
	value   float64
	samples int
}

// add takes a sample; until there are 1/weight of them each counts the same.
func (a *average) add(x, weight float64) {
	a.samples++
	a.value += max(weight, 1/float64(a.samples)) * (x - a.value)
}

// or is the mean, or otherwise while there is none.
func (a *average) or(otherwise float64) float64 {
	if a.samples == 0 {
		return otherwise
	}
	return a.value
}

// flow measures events per second over about the last minute.
type flow struct {
	count       float64 // of the events, older ones decayed
	since, last time.Duration
	samples     int
}

const flowMemory = time.Minute

func (f *flow) add(now time.Duration) {
	if f.samples == 0 {
		f.since, f.last = now, now
	}
	f.count = f.count*decay(now-f.last) + 1
	f.last = now
	f.samples++
}

// perSecond is the rate, 0 while there is none.
func (f *flow) perSecond(now time.Duration) float64 {
	if f.samples < 2 || now <= f.since {
		return 0
	}
	return f.count * decay(now-f.last) / (flowMemory.Seconds() * (1 - decay(now-f.since)))
}

func decay(d time.Duration) float64 { return math.Exp(-d.Seconds() / flowMemory.Seconds()) }

// gapWindow holds the latest times between an answer and the next request of its
// conversation, in seconds; those above maxHold stand for all that are longer,
// and for conversations that never came back.
type gapWindow struct {
	seconds [64]float64
	seen    int
}

// maxHold bounds how long a place is kept for a conversation that left.
const maxHold = 10 * time.Second

func (w *gapWindow) add(gap time.Duration) {
	w.seconds[w.seen%len(w.seconds)] = min(gap, maxHold+1).Seconds()
	w.seen++
}

// gaps are the sorted times of a window.
type gaps []float64

func (w *gapWindow) sorted() gaps {
	return slices.Sorted(slices.Values(w.seconds[:min(w.seen, len(w.seconds))]))
}

// returns is the chance that a conversation which has been away for so long comes
// back while a place may be kept for it.
func (g gaps) returns(away time.Duration) float64 {
	left, _ := slices.BinarySearch(g, away.Seconds())
	late, _ := slices.BinarySearch(g, maxHold.Seconds())
	if left >= late {
		return 0
	}
	return float64(late-left) / float64(len(g)-left)
}

// Times are not exact, so a return may be later than those before by this much.
const (
	lateFactor = 1.25
	lateBy     = 50 * time.Millisecond
)

// hold is the time for which keeping a place wins most: the chance of a return
// within it, times what reading the conversation again would cost everybody on
// its replica, less the time that the place lies idle. 0 when it never wins.
func (g gaps) hold(reread float64) time.Duration {
	n := len(g)
	if n < 8 {
		return 0
	}
	best, most, sum := 0.0, 0.0, 0.0
	for back, t := range g {
		if t > maxHold.Seconds() {
			break
		}
		sum += t
		idle := (sum + t*float64(n-back-1)) / float64(n)
		if gain := float64(back+1)/float64(n)*reread - idle; gain > most {
			best, most = t, gain
		}
	}
	if most == 0 {
		return 0
	}
	return time.Duration(best*lateFactor*float64(time.Second)) + lateBy
}

// prefixWindow holds the cached tokens of the latest first turns.
type prefixWindow struct {
	tokens [15]int64
	seen   int
	middle int64 // the median
}

func (w *prefixWindow) add(cached int64) {
	w.tokens[w.seen%len(w.tokens)] = cached
	w.seen++
	n := min(w.seen, len(w.tokens))
	sorted := w.tokens
	slices.Sort(sorted[:n])
	w.middle = sorted[(n-1)/2]
}

// median is robust against a few first turns that found nothing (a busy replica
// evicted the prefix) or everything (the same prompt sent twice); -1 while there
// is none.
func (w *prefixWindow) median() int64 {
	if w.seen == 0 {
		return -1
	}
	return w.middle
}
