package results

import (
	"bufio"
	"encoding/json"
	"io"
)

// Request is one line of requests.jsonl: what a client saw of one request. nil is
// not known, or did not come.
type Request struct {
	Arm      string `json:"arm"`
	Sessions int    `json:"sessions"` // of the step
	Seed     uint64 `json:"seed"`
	// Client is which of the step's sessions at once sent it, from 0.
	Client int `json:"client"`
	// Session is the conversation, Parent the one that started it as a sub-agent,
	// Turn its number in the conversation, from 1. A request without a conversation
	// has none of them.
	Session *string `json:"session"`
	Parent  *string `json:"parent"`
	Turn    *int    `json:"turn"`

	SentS float64 `json:"sent_s"` // seconds since the run began
	// TTFB is to the first byte of the streamed answer, TTFT to its first token;
	// they are one moment where the system tells only one.
	TTFB *float64 `json:"ttfb_s"`
	TTFT *float64 `json:"ttft_s"`
	ITL  *float64 `json:"itl_ms"` // mean time between tokens
	E2E  *float64 `json:"e2e_s"`  // to the end of a finished answer

	PromptTokens *int `json:"prompt_tokens"` // the engine's counts
	CachedTokens *int `json:"cached_tokens"`
	OutputTokens *int `json:"output_tokens"`

	Replica  *int    `json:"replica"`
	Decision *string `json:"decision"` // the router's reason
	End      End     `json:"end"`
	Error    *string `json:"error"` // of a request that failed
}

// End is how a request ended.
type End string

// Ends of a request.
const (
	Finished End = "finished"
	Cut      End = "cut" // by the end of its step
	Failed   End = "failed"
)

// WriteRequests writes requests.jsonl.
func WriteRequests(w io.Writer, requests []Request) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	for i := range requests {
		if err := e.Encode(&requests[i]); err != nil {
			return err
		}
	}
	return b.Flush()
}
