#!/bin/bash
# In the style of the example scripts of Megatron-LM: arrays, comments inside them, branches.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=2
NNODES=${SLURM_NNODES:-"1"}
NODE_RANK=${RANK:-"0"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DATA_PATH=$3
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
    --node_rank $NODE_RANK
)
MODEL_ARGS=(
    --disable-bias-linear
    --seq-length 256
    --num-layers 2
    --hidden-size 256
    --ffn-hidden-size 896 # a comment
    --num-attention-heads 2
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 2
)
MOE_ARGS=(
    --num-experts 2
    --moe-router-topk 2
#    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 4
    # --lr-decay-iters 320000
)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--split '99,1,0'"
    )
fi
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 1
    --expert-model-parallel-size 2
    --use-distributed-optimizer
)
TRAINING_ARGS+=("${MODEL_PARALLEL_ARGS[@]}" --bf16)
LOGGING_ARGS=(
  #  --log-interval 1 \
   # --save-interval 10000 \
    --eval-iters 10 \
    #--save $CHECKPOINT_PATH \
    --no-load-rng
)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING_ARGS+=(
        --wandb-project ${WANDB_PROJECT:-"Mixtral"}
    )
fi

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${MOE_ARGS[@]} \
    ${TRAINING_ARGS[@]} ${DTYPE_ARGS[@]} \
    ${LOGGING_ARGS[@]}
