package server

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"unicode/utf8"

	"lmwarden/internal/enginesim"
)

// answer is what the model will say, known before it starts: plain text or one tool call.
type answer struct {
	tokens []enginesim.Token // with the mark that ends it, unless it is cut
	text   string            // without a call
	call   *toolCall
	reason string // stop or length

	bytesPerToken int
}

// limits bound an answer.
type limits struct {
	max       int  // tokens, at least 1
	min       int  // tokens before it may end by itself
	ignoreEOS bool // only max ends it
}

// plan makes up the answer to a prompt. Equal prompts get equal answers, different
// choices of one request (see n) different ones.
func (s *Server) plan(prompt []enginesim.Token, w wishes, offered []tool, bounds limits, choice int) answer {
	if call, ok := chooseCall(w, offered); ok {
		tokens := s.tokenizer.Answer(enginesim.Message{
			Role:      "assistant",
			ToolCalls: []enginesim.ToolCall{{Name: call.name, Arguments: json.RawMessage(call.arguments)}},
		})
		tokens = append(tokens, enginesim.EndOfMessage)
		if len(tokens) <= bounds.max { // a call that does not fit would be cut to no use
			return answer{tokens: tokens, call: call, reason: enginesim.ReasonStop}
		}
	}

	seed := s.hash(prompt, choice)
	length := w.tokens
	if length == 0 {
		// Even over 2/5 to 8/5 of the mean.
		low := max(1, s.answerTokens*2/5)
		length = low + int(seed%uint64(max(1, s.answerTokens*8/5-low+1)))
	}
	length = max(length, bounds.min)
	a := answer{reason: enginesim.ReasonStop, bytesPerToken: s.tokenizer.BytesPerToken}
	if bounds.ignoreEOS || length > bounds.max {
		length, a.reason = bounds.max, enginesim.ReasonLength
	}
	words := length
	if a.reason == enginesim.ReasonStop {
		words-- // the mark that ends the answer is a token of it
	}
	a.text = s.tokenizer.Text(words, seed)
	a.tokens = s.tokenizer.Append(make([]enginesim.Token, 0, length), a.text)
	if a.reason == enginesim.ReasonStop {
		a.tokens = append(a.tokens, enginesim.EndOfMessage)
	}
	return a
}

func (s *Server) hash(prompt []enginesim.Token, choice int) uint64 {
	h := fnv.New64a()
	b := binary.BigEndian.AppendUint64(nil, s.seed)
	b = binary.BigEndian.AppendUint64(b, uint64(choice))
	h.Write(b)
	for _, t := range prompt {
		h.Write(binary.BigEndian.AppendUint64(b[:0], uint64(t)))
	}
	return h.Sum64()
}

// between is the text that the answer's tokens from, up to and without to, add. A
// character that they hold only a part of comes with its last token.
func (a *answer) between(from, to int) string {
	return a.text[a.position(a.text, from):a.position(a.text, to)]
}

// said is what the first n tokens hold in one piece: the text, or the call if it is complete. What there
// is of another call is text to the engine's parser.
func (a *answer) said(n int) (text string, call *toolCall) {
	switch {
	case a.call == nil:
		return a.between(0, n), nil
	case n >= len(a.tokens):
		return "", a.call
	}
	markup := "<tool_call>\n{\"name\": \"" + a.call.name + "\", \"arguments\": " + a.call.arguments + "}\n</tool_call>"
	return markup[:a.position(markup, n)], nil
}

// argumentsBetween is what between is, for the arguments of a call. They are spread evenly over
// the call's tokens; which token brings which byte of them is of no consequence.
func (a *answer) argumentsBetween(from, to int) string {
	arguments := a.call.arguments
	return arguments[a.position(arguments, from):a.position(arguments, to)]
}

// position is how many bytes of text the first n tokens cover.
func (a *answer) position(text string, n int) int {
	at := 0
	switch {
	case n >= len(a.tokens):
		return len(text)
	case a.call != nil:
		at = len(text) * n / len(a.tokens)
	default:
		at = min(n*a.bytesPerToken, len(text))
	}
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	return at
}

// finishReason is the reason in the words of the chat dialect.
func (a *answer) finishReason(reason string) string {
	if a.call != nil && reason == enginesim.ReasonStop {
		return "tool_calls"
	}
	return reason
}
