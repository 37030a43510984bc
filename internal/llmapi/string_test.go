package llmapi

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Strings are checked in blocks of 64 bytes: every piece must be seen for what it
// is at every place in a block and across the end of one.
func TestStringPiecesAtEveryOffset(t *testing.T) {
	pieces := []string{
		`\n`, `\"`, `\\`, `\\\\`, `\\\"`, `\\n`, `\\\n`, `\b\f\r\t\/`, `\u00e9`, `\ud83d\ude00`, `\ud83d`, `\udc00\ud83d`, `\ud83d\u0041`,
		"é", "😀", "\x7f", "\u0080", `\u001b`, `\\u12`,
		`\q`, `\u12`, `\u12g4`, `\ud83d\u12`, `\\\q`, "\n", "\x00", "\x1f",
	}
	for _, piece := range pieces {
		for _, behind := range []int{0, 1, 70} {
			for before := range 140 {
				text := `"` + strings.Repeat("x", before) + piece + strings.Repeat("y", behind) + `"`
				var want string
				valid := json.Unmarshal([]byte(text), &want) == nil

				s := scanner{b: []byte(text)}
				canonical := string(s.string())
				s.end()
				if (s.err == nil) != valid {
					t.Fatalf("%q: we say %v, encoding/json says valid %v", text, s.err, valid)
				}
				if !valid {
					continue
				}
				again := scanner{b: []byte(text)}
				if got := again.decoded(); got != want {
					t.Fatalf("%q means %q, want %q", text, got, want)
				}
				var wantCanonical []byte
				for _, r := range want {
					wantCanonical = appendCanonical(wantCanonical, r)
				}
				if canonical != string(wantCanonical) {
					t.Fatalf("%q has the canonical form %q, want %q", text, canonical, wantCanonical)
				}
			}
		}
	}
}

// The vector instructions and the plain words tell the bytes of a block apart alike.
func TestBlocksAreClassifiedAlike(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 100_000 {
		var block [blockSize]byte
		for j := range block {
			switch rng.IntN(1 + i%8) {
			case 0:
				block[j] = byte(rng.Uint32())
			case 1:
				block[j] = '\\'
			default:
				block[j] = "abcdefghijklmnopqrstuvwxyz \"/\x1f\x7f\x80"[rng.IntN(32)]
			}
		}
		got, want := classify(&block), classifyWords(&block)
		behind := want.slash << 1
		got.short, want.short = got.short&behind, want.short&behind
		if got != want {
			t.Fatalf("%q: %x, want %x", block, got, want)
		}
	}
}

// Characters beyond ASCII are checked a block or a run at a time: a fault must be
// found at every place of either, and nothing else taken for one.
func TestUTF8AtEveryOffset(t *testing.T) {
	for _, piece := range []string{
		"é", "€", "😀", "\ufffd", "ééé", "é€😀é", "é\\n€", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\x80", "\xff", "\xc0\x80", "\xed\xa0\xbd", "é\xe9", "€\x80€",
	} {
		for _, run := range []string{"", strings.Repeat("é", 20), strings.Repeat("€", 50)} {
			for before := range 140 {
				for _, behind := range []string{"", "y", "é", strings.Repeat("€", 30), strings.Repeat("y", 70)} {
					text := []byte(`["` + strings.Repeat("x", before) + run + piece + behind + `","` + run + `"]`)
					s := scanner{b: text, strict: true}
					s.skip()
					s.end()
					if at := invalidUTF8(text); at == len(text) && s.err != nil || at < len(text) && (s.err == nil || s.err.Offset != at) {
						t.Fatalf("%q: %v, want a fault at %d of %d", text, s.err, at, len(text))
					}
				}
			}
		}
	}
}

func TestCanonicalForm(t *testing.T) {
	for r := range rune(0x100) {
		form := appendCanonical(nil, r)
		var back string
		if err := json.Unmarshal(fmt.Appendf(nil, `"%s"`, form), &back); err != nil || back != string(r) {
			t.Errorf("%q: %s, %v", r, form, err)
		}
	}
}
