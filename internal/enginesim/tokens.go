package enginesim

import (
	"math/rand/v2"
	"strings"
)

// The special tokens of ChatML. They follow the 256 single bytes, as in the
// vocabulary of the recorded model.
const (
	EndOfText      Token = 256 + iota // <|endoftext|>
	StartOfMessage                    // <|im_start|>
	EndOfMessage                      // <|im_end|>, which ends an answer
	Pad                               // <|pad|>
)

// Tokenizer maps text to tokens without a vocabulary: a token is a run of
// BytesPerToken bytes (1 to 7). A text's last token may be shorter. A single
// byte is the token of its value.
type Tokenizer struct {
	BytesPerToken int
}

// Append appends the tokens of one run of text. A token never reaches over the
// end of a run, so text appended as one run gives the same tokens wherever it
// stands. The names of special tokens are recognized inside the run.
func (t Tokenizer) Append(dst []Token, run string) []Token {
	for {
		before, special, after, found := cutSpecial(run)
		for len(before) > 0 {
			n := min(t.BytesPerToken, len(before))
			dst = append(dst, packToken(before[:n]))
			before = before[n:]
		}
		if !found {
			return dst
		}
		dst = append(dst, special)
		run = after
	}
}

// packToken keeps the bytes themselves, so that different bytes never collide,
// below their number less one.
func packToken(b string) Token {
	t := Token(0)
	for i := range len(b) {
		t = t<<8 | Token(b[i])
	}
	return Token(len(b)-1)<<(8*maxBytesPerToken) | t
}

// cutSpecial cuts text around the first special token in it.
func cutSpecial(text string) (before string, special Token, after string, found bool) {
	for at := 0; ; {
		i := strings.Index(text[at:], "<|")
		if i < 0 {
			return text, 0, "", false
		}
		at += i
		for i, name := range [...]string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"} {
			if after, ok := strings.CutPrefix(text[at:], name); ok {
				return text[:at], EndOfText + Token(i), after, true
			}
		}
		at += len("<|")
	}
}

const vocabulary = `the a file line test error value function returns call list read write check change name path
key type build run fails passes first last next with from into before after when where because then now here
there is are was has does should must can will same other new old small large empty missing unused`

// Text makes up an answer of exactly n tokens: plain words, n x BytesPerToken
// ASCII bytes, no space at either end. Equal arguments give equal text. Appended
// as one run it gives n tokens, BytesPerToken bytes each.
func (t Tokenizer) Text(n int, seed uint64) string {
	size := n * t.BytesPerToken
	if size <= 0 {
		return ""
	}
	words := strings.Fields(vocabulary)
	rng := rand.New(rand.NewPCG(seed, 0))
	text := make([]byte, 0, size+16)
	for len(text) < size {
		text = append(text, words[rng.IntN(len(words))]...)
		text = append(text, ' ')
	}
	text = text[:size]
	if text[size-1] == ' ' {
		// A client may trim what it sends back.
		text[size-1] = '.'
	}
	return string(text)
}
