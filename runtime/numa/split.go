package numa

// Split divides n things among shares by their weights, in order: share i gets the things ends[i] … ends[i+1]-1.
// No share is more than one off its due. Weights are at least 0, and not all of them 0.
func Split(n int, weights []int) (ends []int) {
	total := 0
	for _, w := range weights {
		total += w
	}
	ends = make([]int, len(weights)+1)
	before := 0
	for i, w := range weights {
		before += w
		ends[i+1] = (2*n*before + total) / (2 * total)
	}
	return ends
}
