package bench

// AppendText appends the span as text, so many bytes a token (at least 2). Equal
// IDs are equal text, and the texts of different spans differ in nearly every
// token. At 4 bytes a token the text is short English words, which are mostly one
// token each for the tokenizers of real models too; at other sizes it is noise.
func (s Span) AppendText(dst []byte, bytesPerToken int) []byte {
	const word = len("the ")
	const letters = "abcdefghijklmnopqrstuvwxyz"
	for i := range s.Tokens {
		random := mix(s.ID + uint64(i))
		if bytesPerToken == word {
			at := int(random%uint64(len(words)/word)) * word
			dst = append(dst, words[at:at+word]...)
			continue
		}
		for range bytesPerToken - 1 {
			dst = append(dst, letters[random%uint64(len(letters))])
			random /= uint64(len(letters))
		}
		dst = append(dst, ' ')
	}
	return dst
}

// words are of three letters, each with a space behind it.
const words = "" +
	"ace act add ado age ago aid aim air all and ant any ape apt arc are ark arm art ash ask ate awe " +
	"axe bad bag ban bar bat bay bed bee beg bet bid big bin bit boa bow box boy bud bug bun bus but " +
	"buy cab can cap car cat cod cog cop cot cow cry cub cup cut dad dam day den dew did die dig dim " +
	"dip dog dot dry due dug dye ear eat egg ego elf elm end era eve eye fan far fat fed fee few fig " +
	"fin fir fit fix fly foe fog for fox fry fun fur gap gas gel gem get got gum gun gut guy gym had " +
	"ham has hat hay hen her hid him hip his hit hot how hub hug hut ice ill ink inn its jam jar jaw " +
	"jet job jog joy key kid kin kit lab lap law lay led leg let lid lie lip lit log lot low mad man " +
	"map mat may men met mid mix mob mud mug nap net new nod nor not now nut oak odd off oil old one " +
	"our out owe own pad pan pat paw pay pea pen pet pie pig pin pit pot put rag ran rat raw ray red " +
	"rib rid rim rip rob rod row rub rug run sad sat saw say sea see set she shy sir sit six sky son " +
	"spy sum sun tap tax tea ten the tie tin tip toe ton too top toy "
