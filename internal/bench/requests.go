package bench

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"lmwarden/internal/bench/results"
)

// Requests are the records of a step one by one, in the order in which they were
// sent.
func (o Observation) Requests(arm string, sessions int, seed uint64) []results.Request {
	list := make([]results.Request, 0, len(o.Records))
	for _, r := range o.Records {
		q := results.Request{
			Arm: arm, Sessions: sessions, Seed: seed, Client: r.Client,
			SentS:        *results.Figure(r.Sent.Seconds()),
			PromptTokens: known(r.Prompt), CachedTokens: known(r.Cached), OutputTokens: known(r.Output),
			Replica: known(r.Replica), Decision: said(r.Reason),
			End: results.End(r.End), Error: said(r.Error),
		}
		if r.N > 0 {
			q.Session, q.Turn = conversationName(r.Session), known(r.N)
			if r.Parent != 0 {
				q.Parent = conversationName(r.Parent)
			}
		}
		if r.First >= 0 {
			q.TTFB = took(r.First - r.Sent)
		}
		if r.Token >= 0 {
			q.TTFT = took(r.Token - r.Sent)
		}
		if r.End == Finished {
			q.E2E = took(r.Last - r.Sent)
			if r.Token >= 0 && r.Output > 1 {
				q.ITL = results.Figure(betweenTokens(r.Result))
			}
		}
		list = append(list, q)
	}
	slices.SortStableFunc(list, func(a, b results.Request) int { return cmp.Compare(a.SentS, b.SentS) })
	return list
}

// betweenTokens is the mean time between the tokens of an answer of at least
// two, in milliseconds.
func betweenTokens(r Result) float64 {
	return 1000 * (r.Last - r.Token).Seconds() / float64(r.Output-1)
}

func took(d time.Duration) *float64 { return results.Figure(d.Seconds()) }

// conversationName is a session's key as text: JSON's numbers do not hold it.
func conversationName(key uint64) *string {
	name := fmt.Sprintf("%016x", key)
	return &name
}

// known is nil for the -1 that stands for a count or a replica that is not known.
func known(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}

func said(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
