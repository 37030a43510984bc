package web

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"lmwarden/internal/stats"
)

// overviewPage answers: is every replica up, is routing doing its job, did it get
// slower, what happened.
type overviewPage struct {
	page
	state
	Tiles  []tile
	Span   string // of the drawings
	Models []card
	Prompt chart
	Events []eventRow
	// History says what is wrong with the history, empty when nothing is.
	History string
	// Unassigned are the engines that belong to no model.
	Unassigned []serverFacts
}

// state is the whole gateway in sentences.
type state struct {
	Heading, Say            string
	live, inFlight, waiting int
	states                  map[string]int
}

// tile is a number with its last hour.
type tile struct {
	ID, Label, Value, Beside string
	Link                     string
	Line                     sparkline

	value float64
	line  []float64
}

type eventRow struct {
	Event
	Link string
}

// stateOf sums up all models.
func (h *Handler) stateOf(pools []Pool) (state, []card) {
	s := state{states: map[string]int{}}
	var cards []card
	for _, p := range pools {
		v := p.View()
		cards = append(cards, cardOf(v, false))
		for st, n := range countStates(v) {
			s.states[st] += n
		}
		s.live += v.Routing.Live
		s.inFlight += v.Routing.InFlight
		for _, r := range modelOf(v).Replicas {
			s.waiting += max(int(r.Waiting), 0)
		}
	}
	s.Heading = statesSentence(s.states)
	if len(pools) == 0 {
		s.Heading = "No model is known yet."
		s.Say = "The engines have not told what they serve."
		return s, nil
	}
	s.Say = fmt.Sprintf("%s live, %s in flight, %d waiting in the engines’ queues.",
		plural(s.live, "1 conversation", "%d conversations"), plural(s.inFlight, "1 request", "%d requests"), s.waiting)
	return s, cards
}

// besideShare fills in what the cached share would be without memory, where one
// model makes that a question with one answer.
func besideShare(tiles []tile, o hour, pools []Pool) {
	if len(pools) != 1 {
		return
	}
	m := memoryOf(o.recent)
	if text, ok := m.estimate(pools[0].View()); ok {
		for i := range tiles {
			if tiles[i].ID == "cached" {
				tiles[i].Beside = "without memory " + text
			}
		}
	}
}

func (h *Handler) overviewPage(w http.ResponseWriter, r *http.Request) {
	o := overviewPage{page: h.page(r, navOverview, "Overview", "/api/overview")}
	pools := h.o.Pools()
	o.state, o.Models = h.stateOf(pools)
	o.History = h.history.State().Sentence
	hour, err := h.hourOf(r.Context())
	if err == nil {
		o.Tiles, o.Span = hour.tiles(), hour.words
		besideShare(o.Tiles, hour, pools)
		o.Prompt, _ = tokenCharts(frame{Height: 130}, hour.query, hour.points, hour.now)
	} else if o.History == "" {
		o.History = sentenceOf(err.Error())
	}
	for _, e := range h.events(10) {
		row := eventRow{Event: e}
		if e.Model != "" {
			row.Link = modelPath(e.Model)
		}
		o.Events = append(o.Events, row)
	}
	if h.o.Unassigned != nil {
		o.Unassigned = serversOf(h.o.Unassigned())
	}
	h.render(w, r, http.StatusOK, "overview.html", o)
}

func (h *Handler) events(n int) []Event {
	if h.o.Events == nil {
		return nil
	}
	return h.o.Events(n)
}

// hour is the latest time of all models, and what it was a day ago.
type hour struct {
	recent
	now       time.Time
	points    []stats.TokenPoint
	yesterday recent
}

func (h *Handler) hourOf(ctx context.Context) (hour, error) {
	o := hour{now: h.o.Now().UTC()}
	var err error
	if o.recent, err = h.recent(ctx, ""); err != nil {
		return o, err
	}
	o.points = o.tokens.Series[0].Points
	o.yesterday, err = h.over(ctx, "", o.now.Add(-24*time.Hour), time.Hour, time.Minute)
	return o, err
}

// lately is the sum of what of gives over the latest minute or two, and how long
// that is: a step that has just begun says nothing alone.
func (o *hour) lately(of func(i int) int64) (sum int64, ran time.Duration) {
	for i := max(len(o.points)-1-int(time.Minute/o.query.Step), 0); i < len(o.points); i++ {
		sum += of(i)
		ran += min(max(o.now.Sub(o.points[i].Time), time.Second), o.query.Step)
	}
	return sum, ran
}

// tiles are the four numbers of the overview.
func (o *hour) tiles() []tile {
	n := len(o.points)
	requestPoints, total := o.requests.Series[0].Points, o.requests.Series[0].Total
	perMinute, output, cached, tail := unknown(n), unknown(n), unknown(n), unknown(n)
	for i, p := range o.points {
		output[i] = rate(p.Completion, p.Time, o.query.Step, o.now)
		if percent, ok := p.CachedPercent(); ok {
			cached[i] = percent
		}
	}
	for i, p := range requestPoints[:min(len(requestPoints), n)] {
		perMinute[i] = 60 * rate(p.Requests, p.Time, o.query.Step, o.now)
		if p.TTFB.Count > 0 {
			tail[i] = p.TTFB.P95.Seconds()
		}
	}
	per := func(of func(int) int64, unit float64) float64 {
		sum, ran := o.lately(of)
		if ran <= 0 {
			return math.NaN()
		}
		return unit * float64(sum) / ran.Seconds()
	}
	requests := tile{ID: "requests", Label: "Requests a minute", Link: "/stats?measure=requests", line: perMinute,
		value: per(func(i int) int64 {
			if i < len(requestPoints) {
				return requestPoints[i].Requests
			}
			return 0
		}, 60)}
	requests.Value = compact(requests.value)
	tokens := tile{ID: "output", Label: "Output tokens a second", Link: "/stats", line: output,
		value: per(func(i int) int64 { return o.points[i].Completion }, 1)}
	tokens.Value = compact(tokens.value)
	share := tile{ID: "cached", Label: "Cached share of prompt", Link: "/stats", line: cached, value: math.NaN()}
	if p, ok := o.tokens.Total.CachedPercent(); ok {
		share.value = p
	}
	share.Value = about(percent(share.value))
	ttfb := tile{ID: "ttfb", Label: "Time to first byte, p95", Link: "/stats?measure=ttfb", line: tail, value: math.NaN()}
	if total.TTFB.Count > 0 {
		ttfb.value = total.TTFB.P95.Seconds()
	}
	ttfb.Value = seconds(ttfb.value)
	if y := o.yesterday.requests.Series[0].Total; y.Requests > 0 {
		requests.Beside = "yesterday " + compact(float64(y.Requests)/60)
		tokens.Beside = "yesterday " + compact(float64(o.yesterday.tokens.Total.Completion)/3600)
		if p, ok := o.yesterday.tokens.Total.CachedPercent(); ok {
			share.Beside = "yesterday " + about(percent(p))
		}
		if y.TTFB.Count > 0 {
			ttfb.Beside = "yesterday " + seconds(y.TTFB.P95.Seconds())
		}
	}
	all := []tile{requests, tokens, share, ttfb}
	for i, class := range [...]string{"plain", "completion", "cached", "p95"} {
		all[i].Line = sparklineOf(class, all[i].line)
	}
	return all
}

// getOverview is the page's twin.
func (h *Handler) getOverview(w http.ResponseWriter, r *http.Request) {
	s, _ := h.stateOf(h.o.Pools())
	type figure struct {
		Value number   `json:"value"`
		Line  []number `json:"line"`
	}
	type event struct {
		Time  stamp  `json:"time"`
		Model text   `json:"model"`
		Level string `json:"level"`
		Text  string `json:"text"`
	}
	body := struct {
		State         string            `json:"state"`
		Version       string            `json:"version"`
		Started       stamp             `json:"started"`
		Replicas      map[string]int    `json:"replicas"`
		Conversations int               `json:"live_conversations"`
		InFlight      int               `json:"in_flight"`
		Waiting       int               `json:"waiting"`
		Tiles         map[string]figure `json:"tiles"`
		Events        []event           `json:"events"`
		Warnings      []string          `json:"warnings"`
		History       text              `json:"history_problem"`
	}{s.Heading, h.version(), stamp(h.started), s.states, s.live, s.inFlight, s.waiting, map[string]figure{}, []event{}, append([]string{}, h.o.Warnings()...), text(h.history.State().Sentence)}
	if o, err := h.hourOf(r.Context()); err == nil {
		for _, t := range o.tiles() {
			f := figure{number(t.value), []number{}}
			for _, v := range t.line {
				f.Line = append(f.Line, number(v))
			}
			body.Tiles[t.ID] = f
		}
	} else if body.History == "" {
		body.History = text(sentenceOf(err.Error()))
	}
	for _, e := range h.events(50) {
		body.Events = append(body.Events, event{stamp(e.Time), text(e.Model), e.Level, e.Text})
	}
	writeJSON(w, body)
}

// modelsPage has the card of every model; with one model it is that model's page.
func (h *Handler) modelsPage(w http.ResponseWriter, r *http.Request) {
	pools := h.o.Pools()
	if len(pools) == 1 {
		http.Redirect(w, r, modelPath(pools[0].View().Name), http.StatusSeeOther)
		return
	}
	p := overviewPage{page: h.page(r, navModels, "Models", "/api/models")}
	p.state, p.Models = h.stateOf(pools)
	slices.SortStableFunc(p.Models, func(a, b card) int { return cmp.Compare(a.Name, b.Name) })
	h.render(w, r, http.StatusOK, "models.html", p)
}
