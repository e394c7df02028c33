"""Names that users of other projects type and that are no keys here, with what to use instead."""

INSTEAD = {
    # upstream MaxText
    "adamw_mask": "leave it out: norms and biases are not decayed, all else is",
    "attention_type": "leave it out: sliding_window_size and decoder_block say it",
    "chat_template_path": "use chat_template",
    "context": "use attention_out",
    "custom_mesh": "use custom_mesh_and_rule",
    "dataset_name": "use hf_path with dataset_type=hf, or grain_train_files",
    "dataset_path": "use grain_train_files with dataset_type=grain",
    "decoder_layer_input": "leave it out: the input of each layer is always kept",
    "default_prompt": "use prompt",
    "eval_dataset_name": "use grain_eval_files, or hf_path with hf_eval_split",
    "eval_split": "use hf_eval_split, or grain_eval_files",
    "grain_num_threads": "use grain_worker_count",
    "grain_prefetch_buffer_size_eval": "use grain_prefetch_buffer_size",
    "grain_per_worker_buffer_size_eval": "use grain_per_worker_buffer_size",
    "enable_wandb": "use enable_tensorboard or metrics_file",
    "enable_autocheckpoint": "leave it out: SIGTERM saves a checkpoint",
    "enable_continuous_checkpointing": "use checkpoint_period, or local_checkpoint_period",
    "global_rope_max_timescale": "use rope_max_timescale",
    "hf_access_token": "set the environment variable HF_TOKEN",
    "hardware": "set the environment variable JAX_PLATFORMS=cpu, cuda or tpu",
    "hide_profiler_step_metric": "leave it out: tracing is no part of a step's time",
    "ici_fsdp_transpose_parallelism": "use ici_fsdp_parallelism and a rule that splits the axis",
    "ici_sequence_parallelism": "use ici_context_parallelism",
    "dcn_fsdp_transpose_parallelism": "use dcn_fsdp_parallelism and a rule that splits the axis",
    "dcn_sequence_parallelism": "use dcn_context_parallelism",
    "max_prefill_predict_length": "leave it out: a prompt may take any part of max_target_length",
    "mlpwi": "use mlpwi_0 and mlpwi_1",
    "override_logical_axis_rules": "leave it out: logical_axis_rules replaces single rules",
    "param_scan_axis": "leave it out: layers are always stacked on the first dim",
    "prefill_chunk_size": "use max_num_batched_tokens",
    "profile_cleanly": "leave it out: a trace always holds whole steps",
    "profile_periodically_period": "use profiler_steps: one trace a start",
    "qkv_proj": "use query_proj, key_proj and value_proj",
    "return_log_prob": "use decode_logprobs=0 with prompts_file",
    "reuse_example_batch": "leave it out, or use dataset_type=synthetic",
    "save_checkpoint_on_start": "leave it out: a checkpoint is written each checkpoint_period",
    "source_checkpoint_layout": "leave it out: checkpoints are Orbax",
    "tokenize_train_data": "leave it out: text is always tokenized",
    "tokenize_eval_data": "leave it out: text is always tokenized",
    "upload_all_profiler_results": "leave it out: the first process is traced",
    "use_chunked_prefill": "leave it out: prompts beyond max_num_batched_tokens are chunked",
    "use_post_attn_norm": "leave it out: decoder_block says it",
    "use_post_ffw_norm": "leave it out: decoder_block says it",
    "wandb_project_name": "use enable_tensorboard or metrics_file",
    "wandb_run_name": "use run_name",
    # elsewhere
    "batch_size": "use per_device_batch_size",
    "d_model": "use base_emb_dim",
    "global_batch_size": "use per_device_batch_size: global / devices / accumulation steps",
    "hidden_size": "use base_emb_dim",
    "host": "use serve_host",
    "intermediate_size": "use base_mlp_dim",
    "local_batch_size": "use per_device_batch_size",
    "lr": "use learning_rate",
    "max_model_len": "use max_target_length",
    "max_steps": "use steps",
    "n_layers": "use base_num_decoder_layers",
    "num_attention_heads": "use base_num_query_heads",
    "num_hidden_layers": "use base_num_decoder_layers",
    "num_key_value_heads": "use base_num_kv_heads",
    "num_layers": "use base_num_decoder_layers",
    "num_steps": "use steps",
    "port": "use serve_port",
    "rms_norm_eps": "use normalization_layer_epsilon",
    "rope_scaling": "use rope_type and the keys that its description names",
    "rope_theta": "use rope_max_timescale",
    "sliding_window": "use sliding_window_size",
    "seed": "use init_weights_seed or data_shuffle_seed",
    "seq_len": "use max_target_length",
    "seq_length": "use max_target_length",
    "train_iters": "use steps",
    "weight_decay": "use adam_weight_decay",
}

UPSTREAM = frozenset(
    """
    activations_in_float32 adamw_mask ar_cache_axis_order attention_output_dim
    attention_sink attention_type autoregressive_decode_assert
    base_moe_mlp_dim batch_split_factor block_diffusion_canvas_policy
    block_diffusion_logit_alignment block_diffusion_mask_id block_diffusion_min_noise
    capacity_factor cast_logits_to_fp32 causal_block_size check_vma
    checkpoint_conversion_fn checkpoint_storage_concurrent_gb
    checkpoint_storage_target_data_file_size_bytes checkpoint_storage_use_ocdbt
    checkpoint_storage_use_zarr3 chunk_attn_window_size communication_overlapping_alpha
    compile_topology compile_topology_num_slices compile_xla_flags compiled_trainstep_file
    compress_ratios compressed_rope_max_timescale constant_bound_config context
    context_parallel_reorder_strategy context_sharding custom_mesh custom_mesh_and_rule_for_eval
    dataset_name dataset_path
    dcn_autoregressive_parallelism dcn_bandwidth_burst dcn_bandwidth_interface
    dcn_bandwidth_latency dcn_bandwidth_limit dcn_context_autoregressive_parallelism
    dcn_context_usp_ulysses_parallelism dcn_fsdp_transpose_parallelism dcn_sequence_parallelism
    decoder_layer_input default_prompt dense_fsdp_use_two_stage_all_gather
    dq_reduction_steps dtype_mm dump_hlo dump_hlo_local_dir dump_hlo_local_module_name
    dump_hlo_module_name dump_hlo_xla_flags dump_jaxpr dump_jaxpr_local_dir dump_step
    enable_autocheckpoint enable_continuous_checkpointing
    enable_model_warmup enable_orbax_v1 enable_padding_causal_mask enable_rampup_batch_size
    enable_single_controller enable_single_replica_ckpt_restoring enable_tpu_profiling_options
    enable_wandb eval_dataset_name eval_split eval_start_step expansion_factor_real_data
    first_num_dense_layers first_num_hash_layers float32_weight_sum
    generate_padding_batch_eval generate_padding_batch_train global_head_dim
    global_num_kv_heads global_parameter_scale global_rampup_samples global_rope_max_timescale
    global_rope_proportion grain_data_source_max_workers grain_index_storage_option
    grain_num_threads grain_num_threads_eval grain_per_worker_buffer_size_eval
    grain_prefetch_buffer_size_eval grain_ram_budget_mb
    hardware
    hidden_size_per_layer_input hide_profiler_step_metric ici_autoregressive_parallelism
    ici_context_autoregressive_parallelism ici_context_usp_ulysses_parallelism
    ici_fsdp_transpose_parallelism ici_sequence_parallelism inhomogeneous_layer_cycle_interval
    interleave_moe_layer_step jax_debug_log_modules kv_proj kv_wa_proj load_balance_loss_weight
    load_from_prefill_dir
    local_rope_proportion local_use_splash_scheduler
    logical_axis_rules_for_eval max_checkify max_corpus_chars max_inflight_computations
    max_prefill_predict_length merge_gating_gmm mla_kv mla_q
    mla_qk_head_chunk_size mlp_activations_limit mlp_bias mlpwi model_call_mode
    moe_chunk_barrier moe_dispatch_no_expert_sharding moe_expert_input_dim
    moe_fsdp_use_two_stage_all_gather moe_mlpwi_0 moe_mlpwi_1 moe_mlpwo
    monitor_step_time_deviation mtp_eval_target_module mtp_loss_scaling_factor
    mtp_num_layers multi_sampling
    n_routing_groups nope_layer_interval norm_topk_prob normalize_embedding_logits
    num_communication_overlapping_steps num_experts num_experts_per_tok num_kv_shared_layers
    num_moe_emb_chunks num_moe_token_chunks o_groups optimize_mesh_for_tpu_v6e
    optimizer_memory_host_offload override_logical_axis_rules param_scan_axis
    parameter_memory_host_offload partial_rotary_factor per_device_batch_size_increment
    per_device_batch_size_start pipeline_fsdp_ag_per_repeat position_id_per_seconds
    prefill_cache_axis_order prefill_cache_dir prefill_chunk_size prefill_slice profile_cleanly
    profile_periodically_period profile_power_events prometheus_port
    qk_nope_head_dim qk_norm_with_scale qk_rope_head_dim qkv_proj query_wa_proj
    record_internal_nn_metrics remove_size_one_mesh_axis_from_type reshape_q return_log_prob
    reuse_example_batch ring_scan_unroll rope_interleave
    rope_min_timescale rope_pairwise rope_use_scale
    routed_bias routed_scaling_factor routed_score_func save_checkpoint_on_start
    scan_layers_per_stage scan_pipeline_repeats
    shard_exp_on_fsdp shard_mode sharding_tolerance shardy
    share_kv_projections shared_experts sinkhorn_iterations
    source_checkpoint_layout sparse_matmul stack_prefill_result_cache
    step_deviation_interval_seconds target_eval_loss temperature_tuning tokenize_eval_data
    tokenize_train_data topk_routing_group tpu_num_chips_to_profile_per_task
    tpu_num_sparse_core_tiles_to_trace tpu_num_sparse_cores_to_trace
    trainable_position_size training_objective
    ulysses_context_sharding use_2d_fsdp_sharding use_batch_split_schedule
    use_chunked_prefill use_custom_sort_vjp use_double_wide_mlp use_gather_mosaic_kernel
    use_gmm_v2 use_jax_splash use_max_logit_estimate use_post_attn_norm
    use_post_ffw_norm use_random_routing use_ring_of_experts use_sequential_layers
    use_sliced_mla_proj use_splash_scheduler use_tokamax_gmm use_tokamax_splash use_truncation
    use_untrainable_positional_embedding v_head_dim v_norm_with_scale
    vllm_hf_config_path vllm_hf_overrides vocab_size_per_layer_input vocab_tiling_ag_once
    wandb_project_name wandb_run_name
    """.split()  # noqa: SIM905 - one name a line would be three hundred lines
)
