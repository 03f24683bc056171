# Needs python3 (3.11 or newer), pip and make. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
MINUTES ?= 30
export OMP_NUM_THREADS ?= 1
export PYTHONDONTWRITEBYTECODE :=  # or every process of the tests compiles the package, and the tests, for itself
MEASURES := generalization latent_code patching
CODES := attention_code latent_geometry activation_sparsity
CLAIMS := who_generalizes where_codes_live where_the_task_is_decided
CIRCUITS := which_heads_carry_the_code same_circuit_on_held_out circuits_are_faithful
DEMO := runs/demo
ZOO := trained_models
# what the repository holds is for reading; papers draw their own
PRINT := --dpi 150
MODELS := $(ZOO)/*-?
RELATIONS := $(ZOO)/relations
REGRESSION := $(ZOO)/regression
HEADS := $(ZOO)/module_heads
BURSTY := $(ZOO)/bursty
WEIGHTS := $(ZOO)/in_weights
BOOLEAN := $(ZOO)/boolean
UNSURE := $(ZOO)/uncertainty
CLASSES := $(ZOO)/function_classes
REPRESENTED := $(ZOO)/representation
MAPS := $(ZOO)/maps
LEARNERS := $(REGRESSION)/linear-* $(REGRESSION)/softmax-4heads-?
DUAL := $(ZOO)/F-softmax-[012] $(ZOO)/fuzzy-softmax-? $(ZOO)/sraven3-softmax-0
WHY := $(ZOO)/F-softmax-? $(ZOO)/F-hypernetwork-?
FAILING := $(ZOO)/fuzzy-* $(ZOO)/[FR]-softmax-? $(ZOO)/[FR]-hypernetwork-? $(ZOO)/F-bottleneck-wide-? $(ZOO)/tuned $(ZOO)/contest $(ZOO)/few_shot \
	$(HEADS) $(BOOLEAN)/conjunction-? $(BOOLEAN)/dnf-? $(BOOLEAN)/parity-? $(RELATIONS)/[12]L-*relative-? $(RELATIONS)/2L-positions-*-output-?
FUZZY := $(ZOO)/fuzzy-softmax-? $(ZOO)/fuzzy-hyla-? $(ZOO)/fuzzy-linear-? $(ZOO)/fuzzy-hyla-linear-?
SPARSE := $(RELATIONS)/2L-*-relative-? $(RELATIONS)/images-*-relative-?

.PHONY: setup browser demo test test-all tests check lint bench bench-diagnosis bench-faults bench-mutants figures zoo notebooks docs clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	@test -d .venv || $(PYTHON) -m venv --upgrade-deps .venv  # today's pip resolves in less than half the time of older ones
	@echo "installing into .venv (some minutes the first time)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	@touch $@

browser: setup  ## Debian's chromium, which the tests of the explorer's page drive
	command -v chromium > /dev/null || { apt-get update -q && apt-get install -q -y chromium; }

demo: setup  ## train two small models side by side, measure them, write the report
	$(BIN)/compolens train trained_models/demo.py --out $(DEMO) --jobs $(JOBS)
	$(BIN)/compolens probe $(MEASURES) $(DEMO)/softmax $(DEMO)/hypernetwork --episodes 1024 --jobs $(JOBS)
	$(BIN)/compolens probe inference_or_execution $(DEMO)/softmax $(DEMO)/hypernetwork --episodes 512 --jobs $(JOBS)
	$(BIN)/compolens analyze $(CLAIMS) $(DEMO)/softmax $(DEMO)/hypernetwork --out $(DEMO)/figures
	$(BIN)/compolens report $(DEMO)/softmax $(DEMO)/hypernetwork -o $(DEMO)/report.html

test: setup  ## what .ci/run runs, all but the slow tests; types are checked meanwhile, on one core alone they take a minute
	@$(MAKE) --no-print-directory -j 2 lint tests

tests: setup
	$(BIN)/python -m pytest -n 2 $(SLOW)

test-all: setup  ## every test, the slow ones of tests/slow.txt too: before a release, and after a change to what many probes use
	@$(MAKE) --no-print-directory -j 2 lint tests SLOW=--slow

check: setup lint  ## lint, types, and the tests of what `git diff` names, slow ones too; everything is `make test-all`
	$(BIN)/python -m pytest -n 2 $$($(BIN)/python tests/changed.py)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## speed and memory, as ratios measured in one run
	$(BIN)/python tests/benchmarks/bench.py

bench-diagnosis: setup  ## how often the diagnosis is right about models whose failure is known
	$(BIN)/python tests/benchmarks/diagnosis/bench.py --jobs $(JOBS)

bench-faults: setup  ## kills, damage and bad input: nothing may be silently wrong
	$(BIN)/python tests/benchmarks/faults/bench.py --minutes $(MINUTES) --page docs/reliability.md

bench-mutants: setup  ## how many small changes of measures, tables and diagnosis the tests notice
	$(BIN)/python tests/benchmarks/mutants/bench.py

docs: setup  ## the site, into docs/_build
	$(BIN)/sphinx-build -q -W -b html docs docs/_build

figures: setup  ## redraw every figure of docs/findings from the shipped tables
	$(BIN)/compolens analyze $(CLAIMS) $(ZOO)/F-softmax-? $(ZOO)/F-hypernetwork-? --out $(ZOO)/figures/F $(PRINT)
	$(BIN)/compolens analyze who_generalizes $(foreach who,softmax hypernetwork,$(ZOO)/F-$(who)-? $(ZOO)/tuned/F-$(who)-?) --out $(ZOO)/figures/tuned $(PRINT)
	$(BIN)/compolens analyze who_generalizes $(ZOO)/tuned/* --out $(ZOO)/figures/all_tuned $(PRINT)
	$(BIN)/compolens analyze who_generalizes $(ZOO)/F-* $(ZOO)/R-* $(ZOO)/unstructured-* --out $(ZOO)/figures/all $(PRINT)
	$(BIN)/compolens analyze failure_has_a_place decodable_is_not_used factors_are_reused when_codes_appear $(WHY) --out $(ZOO)/figures/why $(PRINT)
	$(BIN)/compolens analyze which_factors_fail $(ZOO)/F-softmax-? --out $(ZOO)/figures/why $(PRINT)
	$(BIN)/compolens analyze diagnoses $(WHY) $(ZOO)/R-* $(ZOO)/F-bottleneck-wide-? --out $(ZOO)/figures/why $(PRINT)
	$(BIN)/compolens analyze $(CIRCUITS) circuit_diagram $(ZOO)/F-softmax-? $(ZOO)/F-hypernetwork-? --out $(ZOO)/figures/circuits/F $(PRINT)
	$(BIN)/compolens analyze $(CIRCUITS) $(ZOO)/R-softmax-? $(ZOO)/R-hypernetwork-? --out $(ZOO)/figures/circuits/R $(PRINT)
	$(BIN)/compolens analyze same_circuit_on_held_out $(ZOO)/fuzzy-softmax-? $(ZOO)/fuzzy-hyla-? --out $(ZOO)/figures/circuits/fuzzy $(PRINT)
	$(BIN)/compolens analyze same_circuit_with_another_partner $(ZOO)/F-softmax-? $(ZOO)/F-hypernetwork-? --out $(ZOO)/figures/circuits/F $(PRINT)
	$(BIN)/compolens analyze same_circuit_on_held_out $(ZOO)/sraven3-softmax-? $(ZOO)/sraven3-hyla-? --out $(ZOO)/figures/circuits/sraven $(PRINT)
	$(BIN)/compolens analyze circuits_are_faithful $(ZOO)/sraven3-softmax-? $(ZOO)/sraven3-hyla-? --out $(ZOO)/figures/circuits/sraven $(PRINT)
	$(BIN)/compolens analyze $(CIRCUITS) $(ZOO)/tuned/F-softmax-? $(ZOO)/tuned/F-hypernetwork-? --out $(ZOO)/figures/circuits/tuned $(PRINT)
	$(BIN)/compolens analyze same_circuit_at_another_setting $(foreach who,softmax hypernetwork,$(ZOO)/F-$(who)-? $(ZOO)/tuned/F-$(who)-?) --out $(ZOO)/figures/circuits/tuned $(PRINT)
	$(BIN)/compolens analyze same_circuit_on_held_out $(ZOO)/tuned/R-softmax-? $(ZOO)/tuned/R-hypernetwork-? --out $(ZOO)/figures/circuits/tuned_R $(PRINT)
	$(BIN)/compolens analyze same_circuit_at_another_setting $(foreach who,softmax hypernetwork,$(ZOO)/R-$(who)-? $(ZOO)/tuned/R-$(who)-?) --out $(ZOO)/figures/circuits/tuned_R $(PRINT)
	$(BIN)/compolens analyze ablations scaling $(ZOO)/fuzzy-* --out $(ZOO)/figures/fuzzy $(PRINT)
	$(BIN)/compolens analyze codes_decode_rules $(FUZZY) --out $(ZOO)/figures/fuzzy $(PRINT)
	$(BIN)/compolens analyze codes_decode_rules $(ZOO)/sraven3-* --out $(ZOO)/figures/sraven3 $(PRINT)
	$(BIN)/compolens analyze latent_maps rule_similarity $(ZOO)/sraven3-* --capture 'row mates' --out $(ZOO)/figures/sraven3 $(PRINT)
	$(BIN)/compolens analyze who_generalizes $(ZOO)/tuned/F-softmax-? $(ZOO)/arms/given-? $(ZOO)/arms/t*-? $(ZOO)/tuned/F-hypernetwork-? --labels 'softmax (lr 0.0333)=vanilla' --labels 'softmax (lr 0.01)=given' --labels 'other executor (activation tanh, biases True, n_hidden 1)=tanh-biases' --labels 'other executor (activation relu, n_hidden 2)=two-layers' --out $(ZOO)/figures/arms $(PRINT)
	$(BIN)/compolens analyze who_generalizes codes_decode_rules $(ZOO)/sraven4/*-10M-? --out $(ZOO)/figures/sraven4 $(PRINT)
	$(BIN)/compolens analyze rule_similarity $(ZOO)/sraven4/*-10M-? --capture 'row mates' --out $(ZOO)/figures/sraven4 $(PRINT)
	$(BIN)/compolens analyze scores_by_part $(ZOO)/sraven4/*-20M-0 --parts F,G --out $(ZOO)/figures/sraven4 $(PRINT)
	$(BIN)/compolens analyze classes_told_apart $(ZOO)/sraven4/*-20M-0 --out $(ZOO)/figures/sraven4 $(PRINT)
	$(BIN)/compolens analyze is_it_sparsity_or_transfer $(ZOO)/sraven3-s* --out $(ZOO)/figures/sraven3 $(PRINT)
	$(BIN)/compolens analyze is_it_sparsity_or_transfer $(RELATIONS)/?L-* --out $(ZOO)/figures/relations $(PRINT)
	$(BIN)/compolens analyze is_it_sparsity_or_transfer $(RELATIONS)/images-* --metric R² --out $(ZOO)/figures/images $(PRINT)
	$(BIN)/compolens analyze sparsity_curves $(FUZZY) $(ZOO)/sraven3-* $(SPARSE) --out $(ZOO)/figures/sparsity $(PRINT)
	$(BIN)/compolens analyze sparsity_vs_generalization $(FUZZY) --out $(ZOO)/figures/fuzzy $(PRINT)
	$(BIN)/compolens analyze sparsity_vs_generalization $(ZOO)/sraven3-* --out $(ZOO)/figures/sraven3 $(PRINT)
	$(BIN)/compolens analyze sparsity_vs_generalization $(RELATIONS)/2L-*-relative-? --out $(ZOO)/figures/relations $(PRINT)
	$(BIN)/compolens analyze sparsity_vs_generalization $(RELATIONS)/images-*-relative-? --out $(ZOO)/figures/images $(PRINT)
	$(BIN)/compolens analyze which_learner $(REGRESSION)/linear-?L-* --out $(ZOO)/figures/regression $(PRINT)
	$(BIN)/compolens analyze weights_have_structure $(LEARNERS) --out $(ZOO)/figures/regression $(PRINT)
	$(BIN)/compolens analyze layers_are_gradient_steps $(REGRESSION)/linear-?L-* --out $(ZOO)/figures/regression $(PRINT)
	$(BIN)/compolens analyze newton_or_gradient $(REGRESSION)/linear-5L-? --out $(ZOO)/figures/regression $(PRINT)
	$(BIN)/compolens analyze attention_modifications $(REGRESSION) --out $(ZOO)/figures/regression $(PRINT)
	$(BIN)/compolens analyze depth_decides_the_learner $(MAPS)/regression_depth $(MAPS)/regression_longer --out $(ZOO)/figures/regression_depth $(PRINT)
	$(BIN)/compolens analyze moments_before_weights $(MAPS)/regression_depth/cells/* --out $(ZOO)/figures/regression_depth $(PRINT)
	$(BIN)/compolens analyze heads_are_modules $(HEADS)/constructed-? $(HEADS)/trained-? --out $(ZOO)/figures/module_heads $(PRINT)
	$(BIN)/compolens analyze where_the_representation_stands upper_layers_are_reused $(REPRESENTED)/softmax-? --out $(ZOO)/figures/representation $(PRINT)
	$(BIN)/compolens analyze upper_layers_are_reused $(ZOO)/F-hypernetwork-[012] $(ZOO)/F-softmax-[012] --out $(ZOO)/figures/pasting $(PRINT)
	$(BIN)/compolens analyze when_context_wins $(BURSTY)/softmax-? --out $(ZOO)/figures/bursty $(PRINT)
	$(BIN)/compolens analyze phase_diagram $(MAPS)/labels_and_items --out $(ZOO)/figures/bursty $(PRINT)
	$(BIN)/compolens analyze context_or_weights $(BURSTY)/softmax-? $(WEIGHTS)/both-? $(WEIGHTS)/weights-? --out $(ZOO)/figures/bursty $(PRINT)
	$(BIN)/compolens analyze who_generalizes lookup_heads_are_used $(BOOLEAN)/*-? --out $(ZOO)/figures/boolean $(PRINT)
	$(BIN)/compolens analyze which_prior_sets_the_variance $(UNSURE)/softmax-? --out $(ZOO)/figures/uncertainty $(PRINT)
	$(BIN)/compolens analyze classes_are_combined $(CLASSES)/softmax-? --out $(ZOO)/figures/function_classes $(PRINT)
	$(BIN)/compolens analyze dual_model_agrees random_features_converge $(DUAL) --out $(ZOO)/figures/dual $(PRINT)
	$(BIN)/compolens analyze what_predicts_generalization $(ZOO) --out $(ZOO)/figures/contest $(PRINT)
	$(BIN)/compolens analyze which_composition_fails $(ZOO) --out $(ZOO)/figures/contest $(PRINT)
	$(BIN)/compolens analyze raised_predictors $(MAPS)/auxiliary --out $(ZOO)/figures/contest $(PRINT)
	$(BIN)/compolens analyze phase_diagram $(MAPS)/diversity --out $(ZOO)/figures/contest $(PRINT)
	$(BIN)/compolens analyze phase_diagram $(MAPS)/pairs --out $(ZOO)/figures/pairs $(PRINT)
	$(BIN)/compolens analyze phase_diagram $(MAPS)/initialisation $(MAPS)/initialisation-discrete --out $(ZOO)/figures/scales $(PRINT)
	$(BIN)/compolens analyze held_out_success_lasts $(MAPS)/depth --out $(ZOO)/figures/depth $(PRINT)
	$(BIN)/compolens analyze tuned_comparison $(MAPS)/budgets --out $(ZOO)/figures/budgets $(PRINT)
	$(BIN)/compolens analyze one_setting_matters $(MAPS)/connectedness --out $(ZOO)/figures/contest $(PRINT)

zoo: setup  ## train what is shipped (hours on two cores; finished runs are kept) and measure it
	$(BIN)/compolens train trained_models/runs.py --out trained_models --jobs $(JOBS)
	$(BIN)/compolens probe $(MEASURES) $(CODES) $(MODELS) --jobs $(JOBS)
	$(BIN)/compolens tune trained_models/tuning.py --out $(ZOO)/tuning --jobs $(JOBS)
	$(BIN)/compolens train trained_models/tuned_runs.py --out $(ZOO)/tuned --jobs $(JOBS)
	$(BIN)/compolens tune trained_models/arms_tuning.py --out $(ZOO)/tuning --jobs $(JOBS)
	$(BIN)/compolens train trained_models/arms.py --out $(ZOO)/arms --jobs $(JOBS)
	$(BIN)/compolens probe generalization $(ZOO)/arms/* --jobs $(JOBS)
	$(BIN)/compolens probe generalization inference_or_execution which_prior nonlinear_code code_structure latent_code $(ZOO)/tuned --jobs $(JOBS)
	$(BIN)/compolens probe generalization latent_code $(ZOO)/F-softmax-0 $(ZOO)/F-hypernetwork-0 --steps all --jobs $(JOBS)
	$(BIN)/compolens probe inference_or_execution $(WHY) $(ZOO)/R-* $(ZOO)/F-bottleneck-wide-? --jobs $(JOBS)
	$(BIN)/compolens probe which_prior code_structure $(WHY) --jobs $(JOBS)
	$(BIN)/compolens probe inference_or_execution $(ZOO)/F-softmax-0 $(ZOO)/F-hypernetwork-0 --steps all --jobs $(JOBS)
	$(BIN)/compolens probe swap_factor swap_code erase_code $(WHY) --jobs $(JOBS)
	$(BIN)/compolens probe repair $(WHY) $(ZOO)/R-hypernetwork-? --jobs $(JOBS)
	$(BIN)/compolens probe components edges $(ZOO)/[FR]-softmax-? $(ZOO)/[FR]-hypernetwork-? $(ZOO)/fuzzy-softmax-? $(ZOO)/fuzzy-hyla-? --jobs $(JOBS)
	$(BIN)/compolens probe components edges $(ZOO)/tuned/[FR]-softmax-? $(ZOO)/tuned/[FR]-hypernetwork-? --jobs $(JOBS)
	$(BIN)/compolens probe components $(ZOO)/sraven3-softmax-0 --episodes 128
	$(BIN)/compolens probe components $(ZOO)/sraven3-softmax-[12] $(ZOO)/sraven3-hyla-? --episodes 64 --jobs $(JOBS)
	$(BIN)/compolens probe edges $(ZOO)/sraven3-softmax-? $(ZOO)/sraven3-hyla-? --jobs $(JOBS)
	$(BIN)/compolens probe factor_circuits $(ZOO)/F-softmax-? $(ZOO)/F-hypernetwork-? $(ZOO)/fuzzy-softmax-? --jobs $(JOBS)
	$(BIN)/compolens probe generalization $(ZOO)/fuzzy-* $(ZOO)/sraven3-* --episodes 16384 --jobs $(JOBS)
	$(BIN)/compolens probe generalization $(ZOO)/fuzzy-softmax-0 $(ZOO)/fuzzy-hyla-0 --episodes 16384 --steps all --jobs $(JOBS)
	$(BIN)/compolens train trained_models/relations.py --out $(RELATIONS) --jobs $(JOBS)
	$(BIN)/compolens probe generalization transfer $(RELATIONS) --episodes 512 --jobs $(JOBS)
	$(BIN)/compolens probe activation_sparsity $(SPARSE) --episodes 512 --jobs $(JOBS)
	$(BIN)/compolens train trained_models/regression.py --out $(REGRESSION) --jobs $(JOBS)
	$(BIN)/compolens probe generalization $(REGRESSION) --episodes 4096 --jobs $(JOBS)
	$(BIN)/compolens probe gd_equivalence algorithm_steps weight_structure $(LEARNERS) --jobs $(JOBS)
	$(BIN)/compolens probe dual_model $(REGRESSION)/softmax-4heads-? $(DUAL) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/regression_depth.py --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens probe moments_and_weights $(MAPS)/regression_depth/cells/* --jobs $(JOBS)
	$(BIN)/compolens train trained_models/module_heads.py --out $(HEADS) --jobs $(JOBS)
	$(BIN)/compolens probe generalization module_alignment $(HEADS) --episodes 1024 --jobs $(JOBS)
	$(BIN)/compolens train trained_models/representation.py --out $(REPRESENTED) --jobs $(JOBS)
	$(BIN)/compolens probe representation_map pasting $(REPRESENTED) --jobs $(JOBS)
	$(BIN)/compolens probe pasting $(ZOO)/F-hypernetwork-[012] $(ZOO)/F-softmax-[012] --jobs $(JOBS)
	$(BIN)/compolens train trained_models/bursty.py --out $(BURSTY) --jobs $(JOBS)
	$(BIN)/compolens probe in_context_or_in_weights $(BURSTY) --steps all --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/labels_and_items.py --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens train trained_models/in_weights.py --out $(WEIGHTS) --jobs $(JOBS)
	$(BIN)/compolens probe in_context_or_in_weights $(WEIGHTS) --jobs $(JOBS)
	$(BIN)/compolens train trained_models/boolean.py --out $(BOOLEAN) --jobs $(JOBS)
	$(BIN)/compolens probe generalization head_scores $(BOOLEAN) --jobs $(JOBS)
	$(BIN)/compolens train trained_models/uncertainty.py --out $(UNSURE) --jobs $(JOBS)
	$(BIN)/compolens probe uncertainty $(UNSURE) --episodes 2048 --jobs $(JOBS)
	$(BIN)/compolens train trained_models/function_classes.py --out $(CLASSES) --jobs $(JOBS)
	$(BIN)/compolens probe function_classes $(CLASSES) --jobs $(JOBS)
	$(BIN)/compolens train trained_models/contest.py --out $(ZOO)/contest --jobs $(JOBS)
	$(BIN)/compolens train trained_models/few_shot.py --out $(ZOO)/few_shot --jobs $(JOBS)
	$(BIN)/compolens probe $(MEASURES) task_vectors $(ZOO)/few_shot --jobs $(JOBS)
	$(BIN)/compolens contest $(ZOO) --jobs $(JOBS)
	$(BIN)/compolens probe composition_predictors $(FAILING) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/auxiliary.py --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/diversity.py --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/connectedness.py rates --cells 'corner=*-[18]-1_*' --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/connectedness.py connectedness --cells '*d_y=[18]_student-width=1.0_*' --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/connectedness.py pairs --cells 'learner=*_pairs-shown=*[82]_*' --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/memorisation.py --cells 'gamma=?.[0357]_decay=none_*' --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/memorisation.py --cells 'gamma=0.5_decay=[eml]*' --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/depth.py --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens map trained_models/maps/budgets.py --out $(MAPS) --jobs $(JOBS)
	$(BIN)/compolens probe generalization $(MAPS)/connectedness/cells/support=two-cliques* --episodes 4096 --jobs $(JOBS)
	find $(ZOO) -path '*/tables/*.csv' -size +48k -exec gzip -fn9 {} +

notebooks: setup  ## execute the notebooks in place
	$(BIN)/python notebooks/execute.py notebooks/*.ipynb

clean:
	rm -rf runs .ruff_cache .mypy_cache .hypothesis
