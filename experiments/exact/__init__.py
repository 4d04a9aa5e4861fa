"""Known posteriors: particles that a method needs, and errors that a single run states.

On small problems the posterior p_lm(x | x in C, |x| <= n) can be computed exactly by summing over
all tokenizations, and every method is compared with it (`+task=convergence`). Larger problems have
a posterior that is certified by bounds (`reliability`). docs/convergence.md and docs/reliability.md
have the results. The modules in reading order:

    problems    a prompt, a constraint and a budget, read from a file
    cached      the language model's distributions at all prefixes, each computed once
    truth       evidence, posterior and the law of a single sample, by sums over all prefixes
    measures    distances of runs from the exact posterior, with intervals
    task        the whole study in order, resumable: each run is an example of `smc.sample`; and
                the HMM for P-GCD, distilled from free continuations or given
    report      tables and figures
    reliability stated errors and labels of single runs, compared with the true errors
"""
