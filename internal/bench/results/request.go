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
	Seed     uint64 `json:"seed"`     // of the run
	Client   int    `json:"client"`   // which of the step's sessions at once sent it, from 0

	// A request without a conversation has none of these.

	Session *string `json:"session"` // the conversation
	Parent  *string `json:"parent"`  // the conversation that started this one as a sub-agent
	Turn    *int    `json:"turn"`    // number in the conversation, from 1

	SentS float64  `json:"sent_s"` // seconds since the run began
	TTFB  *float64 `json:"ttfb_s"` // to the first event of the streamed answer; keep-alives are none
	TTFT  *float64 `json:"ttft_s"` // to its first piece of generated text, thinking or tool call
	ITL   *float64 `json:"itl_ms"` // mean time between tokens, from TTFT to the end
	E2E   *float64 `json:"e2e_s"`  // to the end of a finished answer

	PromptTokens *int `json:"prompt_tokens"` // by the engine's count
	CachedTokens *int `json:"cached_tokens"` // of them, found in the prefix cache
	OutputTokens *int `json:"output_tokens"` // by the engine's count

	Replica  *int    `json:"replica"`  // that served it
	Decision *string `json:"decision"` // the router's reason
	End      End     `json:"end"`      // finished, cut (by the end of the step) or failed
	Error    *string `json:"error"`    // of a request that failed
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
